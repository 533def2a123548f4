"""GC-SAN against a plain, slow re-statement of its equations, one session at a time."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from posrec.models.baselines.gcsan import GCSAN, GCSANConfig
from tests.models import checks
from tests.models.checks import SESSIONS, sessions

SMALL = GCSANConfig(d=8, max_length=9)


def slowly(model: GCSAN, session: list[int]) -> Tensor:
    """S_f of one session."""
    edges = checks.edges_with_anchors(session, model.config.anchors)
    vectors = checks.look_up(model, session)
    nodes = checks.gated_graph_slowly(model.graph, vectors, edges)
    hidden = nodes
    for layer in model.attention:
        w_query, w_key, w_value = layer.queries_keys_values.weight.chunk(3)
        keys = [w_key @ vector for vector in hidden.values()]
        values = [w_value @ vector for vector in hidden.values()]
        mapped = {}
        for node, vector in hidden.items():
            query = w_query @ vector
            logits = torch.stack([query @ key / math.sqrt(8) for key in keys])
            attended = logits.softmax(0) @ torch.stack(values)
            inner = (layer.first.weight @ attended + layer.first.bias).clamp(min=0)
            mapped[node] = layer.second.weight @ inner + layer.second.bias + attended
        hidden = mapped
    last = session[-1]
    weight = model.config.weight
    return weight * hidden[last] + (1 - weight) * nodes[last]


@pytest.mark.parametrize("anchors", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("weight", [0.0, 0.6, 1.0])
def test_agrees_with_the_equations(anchors: bool, layers: int, weight: float) -> None:
    model = checks.build(GCSAN, SMALL, anchors=anchors, layers=layers, weight=weight)
    checks.assert_agrees(model, slowly, SESSIONS, checks.FLOAT32)


@given(st.lists(sessions, min_size=1, max_size=4), st.booleans())
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], anchors: bool
) -> None:
    model = checks.build(GCSAN, SMALL, anchors=anchors, layers=2)
    checks.assert_agrees(model, slowly, batch, checks.FLOAT32)
