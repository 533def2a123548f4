"""Shared by the tests of trained models: sessions, slow re-statements of common equations, and a
common check."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import torch
from hypothesis import strategies as st
from torch import Tensor

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


def build(model: Any, config: Any, **changes: Any) -> Any:
    """The model in double precision, for evaluation."""
    torch.manual_seed(3)
    return model(ITEMS, replace(config, **changes)).double().eval()


def count_edges(session: Sequence[int]) -> tuple[Weights, Weights]:
    """How often each item was clicked right after each other, seen from its receiver and from its
    sender."""
    nodes = dict.fromkeys(session)
    incoming = {(receiver, sender): 0.0 for receiver in nodes for sender in nodes}
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
    if not divided:
        return incoming, outgoing
    return divide_by_sums(incoming), divide_by_sums(outgoing)


def divide_by_sums(weights: Weights) -> Weights:
    totals: dict[int, float] = {}
    for (receiver, _), weight in weights.items():
        totals[receiver] = totals.get(receiver, 0) + weight
    return {key: weight / (totals[key[0]] or 1) for key, weight in weights.items()}


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
        from_in = torch.zeros_like(vector)
        from_out = torch.zeros_like(vector)
        for sender, sent in vectors.items():
            from_in = from_in + incoming[node, sender] * (w_in @ sent + b_in)
            from_out = from_out + outgoing[node, sender] * (w_out @ sent + b_out)
        message = torch.cat([from_in, from_out])
        of_message = layer.from_message.weight @ message + layer.from_message.bias
        of_node = w_gates @ vector + b_gates
        updated[node] = gru_step(of_message, of_node, vector)
    return updated


def gru_step(of_input: Tensor, of_state: Tensor, state: Tensor) -> Tensor:
    """The next state, from what the input and the state give to the three gates."""
    reset_input, update_input, new_input = of_input.chunk(3)
    reset_state, update_state, new_state = of_state.chunk(3)
    reset = (reset_input + reset_state).sigmoid()
    update = (update_input + update_state).sigmoid()
    new = (new_input + reset * new_state).tanh()
    return (1 - update) * new + update * state


def look_up(model: Any, session: Sequence[int]) -> dict[int, Tensor]:
    return {item: model.embedding.weight[item - 1] for item in session}


def gru_slowly(layer: Any, inputs: list[Tensor]) -> list[Tensor]:
    """The states of one layer, click by click, gate by gate."""
    state = torch.zeros(layer.hidden_size, dtype=torch.float64)
    states = []
    for x in inputs:
        of_input = layer.weight_ih_l0 @ x + layer.bias_ih_l0
        of_state = layer.weight_hh_l0 @ state + layer.bias_hh_l0
        state = gru_step(of_input, of_state, state)
        states.append(state)
    return states


def vector(table: Any, item: int) -> Tensor:
    if 1 <= item <= ITEMS:
        return table.weight[item - 1]
    return torch.zeros(table.weight.shape[1], dtype=torch.float64)


def assert_agrees(
    model: Any,
    slowly: Callable[[Any, list[int]], Tensor],
    batch: list[list[int]],
    atol: float = 1e-12,
) -> None:
    """Session vectors of a batch against one session at a time, in double precision."""
    vectors = model.session_vectors(SessionBatch.of(batch))
    expected = torch.stack([slowly(model, session) for session in batch])
    assert torch.allclose(vectors, expected, atol=atol)
