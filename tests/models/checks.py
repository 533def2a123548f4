"""Shared by the tests of trained models: sessions, slow re-statements of common equations, and a
common check."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import networkx as nx
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from posrec.nn.batch import SessionBatch

ITEMS = 12
SESSIONS = [
    [1, 2, 3],
    [4],
    [5, 5, 5],
    [1, 2, 1, 3, 2, 9, 1],
    [7, 8, 7, 8],
    [3, 3, 6, 11, 12, 10, 2, 6, 4],
]
WITH_UNKNOWN = [*SESSIONS, [12, 50, 3], [50]]
FLOAT32 = 2e-6  # graphs are in single precision, so divided weights differ in the seventh digit
sessions = st.lists(st.integers(1, ITEMS), min_size=1, max_size=9)
Weights = dict[tuple[int, int], float]  # (receiver, sender) -> weight


def count_edges(session: Sequence[int]) -> tuple[Weights, Weights]:
    """How often each item was clicked right after each other, seen from its receiver and from its
    sender."""
    nodes = dict.fromkeys(session)
    incoming = {(one, other): 0.0 for one in nodes for other in nodes}
    outgoing = dict(incoming)
    for before, after in pairwise(session):
        incoming[after, before] += 1
        outgoing[before, after] += 1
    return incoming, outgoing


def distances(session: Sequence[int]) -> dict[int, dict[int, int]]:
    graph = nx.Graph()
    graph.add_nodes_from(session)
    graph.add_edges_from(pairwise(session))
    return dict(nx.all_pairs_shortest_path_length(graph))


def repeated(session: Sequence[int]) -> set[int]:
    return {item for item in session if session.count(item) > 1}


def edges_with_anchors(
    session: Sequence[int], anchors: bool, divided: bool = True
) -> tuple[Weights, Weights]:
    """The edges of PosRec, SR-GNN and GC-SAN: anchors added, then each node's weights divided by
    their sum."""
    incoming, outgoing = count_edges(session)
    if anchors:
        steps = distances(session)
        for node in dict.fromkeys(session):
            for anchor in {session[0], *repeated(session)}:
                incoming[node, anchor] += steps[node][anchor]
            for anchor in {session[-1], *repeated(session)}:
                outgoing[node, anchor] += steps[node][anchor]
    for weights in (incoming, outgoing) if divided else ():
        for node in dict.fromkeys(session):
            total = sum(
                value for (receiver, _), value in weights.items() if receiver == node
            )
            for key in weights:
                if key[0] == node and total:
                    weights[key] /= total
    return incoming, outgoing


def gated_graph_slowly(
    layer: Any, vectors: dict[int, Tensor], edges: tuple[Weights, Weights]
) -> dict[int, Tensor]:
    """One step of the gated graph layer, node by node."""
    d = layer.d
    w_in, w_out, w_gates = layer.from_node.weight.split([d, d, 3 * d])
    b_in, b_out, b_gates = layer.from_node.bias.split([d, d, 3 * d])
    incoming, outgoing = edges
    updated = {}
    for node, vector in vectors.items():
        message = torch.cat([
            sum(incoming[node, other] * (w_in @ vectors[other] + b_in) for other in vectors),
            sum(outgoing[node, other] * (w_out @ vectors[other] + b_out) for other in vectors),
        ])  # fmt: skip
        of_message = (
            layer.from_message.weight @ message + layer.from_message.bias
        ).split(d)
        of_node = (w_gates @ vector + b_gates).split(d)
        reset, update = (
            (of_message[part] + of_node[part]).sigmoid() for part in (0, 1)
        )
        new = (of_message[2] + reset * of_node[2]).tanh()
        updated[node] = (1 - update) * new + update * vector
    return updated


def look_up(model: Any, session: Sequence[int]) -> dict[int, Tensor]:
    return {item: model.embedding.weight[item - 1] for item in session}


def gru_slowly(layer: nn.GRU, inputs: list[Tensor]) -> list[Tensor]:
    """The states of one layer, click by click, gate by gate."""
    state = torch.zeros(layer.hidden_size, dtype=torch.float64)
    states = []
    for x in inputs:
        from_x = layer.weight_ih_l0 @ x + layer.bias_ih_l0
        from_state = layer.weight_hh_l0 @ state + layer.bias_hh_l0
        (reset_x, update_x, new_x), (reset_h, update_h, new_h) = (
            from_x.chunk(3),
            from_state.chunk(3),
        )
        reset = (reset_x + reset_h).sigmoid()
        update = (update_x + update_h).sigmoid()
        state = (1 - update) * (new_x + reset * new_h).tanh() + update * state
        states.append(state)
    return states


def vector(table: nn.Module, item: int) -> Tensor:
    known = 1 <= item <= ITEMS
    return (
        table.weight[item - 1]
        if known
        else torch.zeros(table.weight.shape[1], dtype=torch.float64)
    )


def assert_agrees(
    model: Any,
    slowly: Callable[[Any, list[int]], Tensor],
    batch: list[list[int]],
    atol: float = 1e-12,
) -> None:
    """Session vectors of a batch against one session at a time, in double precision."""
    fast = model.session_vectors(SessionBatch.of(batch))
    assert torch.allclose(
        fast, torch.stack([slowly(model, session) for session in batch]), atol=atol
    )
