"""FGNN against a plain, slow re-statement of its equations, one session at a time."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from posrec.models.baselines.fgnn import FGNN, FGNNConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks
from tests.models.checks import SESSIONS, sessions


def make(**changes: Any) -> FGNN:
    config = FGNNConfig(d=8, heads=3, layers=3, max_length=9)
    model = checks.build(FGNN, config, **changes)
    # At d = 8 a deviation of 0.1 would leave next to nothing after three layers.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def neighbourhood(session: list[int], anchors: bool) -> checks.Weights:
    """(the node that attends, the node attended to) -> weight, for all edges."""
    weights, _ = checks.count_edges(session)
    if anchors:
        steps = checks.distances(session)
        for node in dict.fromkeys(session):
            for anchor in {session[0], session[-1], *checks.repeated(session)}:
                weights[node, anchor] += steps[node][anchor]
    for node in dict.fromkeys(session):
        weights[node, node] = weights[node, node] or 1.0
    return {pair: weight for pair, weight in weights.items() if weight}


def attention_slowly(
    layer: Any, nodes: dict[int, Tensor], weights: checks.Weights
) -> dict[int, Tensor]:
    matrices = layer.values.weight.chunk(layer.heads, dim=1)
    updated = {}
    for node in nodes:
        attended = torch.zeros_like(nodes[node])
        near = [other for other in nodes if (node, other) in weights]
        for head, matrix in enumerate(matrices):
            logits = []
            for other in near:
                logit = (
                    layer.of_nodes[0, head] @ (matrix @ nodes[node])
                    + layer.of_nodes[1, head] @ (matrix @ nodes[other])
                    + layer.of_weight[head] * weights[node, other]
                )
                logits.append(logit if logit > 0 else 0.2 * logit)
            total = sum(logit.exp() for logit in logits)
            for logit, other in zip(logits, near, strict=True):
                attended = attended + logit.exp() / total * (matrix @ nodes[other])
        updated[node] = attended / layer.heads + layer.values.bias
    return updated


def slowly(model: FGNN, session: list[int]) -> Tensor:
    nodes = checks.look_up(model, session)
    weights = neighbourhood(session, model.config.anchors)
    for number, layer in enumerate(model.attention):
        if number:
            nodes = {item: vector.clamp(min=0) for item, vector in nodes.items()}
        nodes = attention_slowly(layer, nodes, weights)
    attended = torch.zeros(model.config.d, dtype=torch.float64)
    query = nodes[session[-1]] if model.config.from_last else attended
    for _ in range(model.config.steps):
        cell = model.readout.cell
        of_input = cell.weight_ih @ torch.cat([query, attended]) + cell.bias_ih
        of_state = cell.weight_hh @ query + cell.bias_hh
        query = checks.gru_step(of_input, of_state, query)
        vectors = torch.stack(list(nodes.values()))
        attended = (vectors @ query).softmax(0) @ vectors
    return model.out.weight @ torch.cat([query, attended])


@pytest.mark.parametrize("anchors", [False, True])
@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (3, 3), (2, 4)])
def test_agrees_with_the_equations(anchors: bool, layers: int, steps: int) -> None:
    model = make(anchors=anchors, layers=layers, steps=steps)
    checks.assert_agrees(model, slowly, SESSIONS, checks.FLOAT32)


@given(st.lists(sessions, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], anchors: bool, from_last: bool
) -> None:
    model = make(anchors=anchors, from_last=from_last)
    checks.assert_agrees(model, slowly, batch, checks.FLOAT32)


def test_weights_of_a_session_by_hand() -> None:
    """a b a a c: a attends to itself (a a: 1) and b; b to a and itself; c to a and itself."""
    batch = SessionBatch.of([[4, 6, 4, 4, 9]])
    model = make(anchors=False)
    weights = model.weights(model.build_graph(batch), batch.lengths)[0]
    nodes = [0, 1, 4]
    assert weights[nodes][:, nodes].tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 1]]
    # With anchors a (first, repeated) and c (last): distances a-b 1, a-c 1, b-c 2 are added.
    model = make(anchors=True)
    weights = model.weights(model.build_graph(batch), batch.lengths)[0]
    assert weights[nodes][:, nodes].tolist() == [[1, 1, 1], [2, 1, 2], [2, 0, 1]]
