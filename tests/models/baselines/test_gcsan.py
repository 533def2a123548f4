"""GC-SAN against a plain, slow re-statement of its equations, one session at a time."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posrec.models.baselines.gcsan import GCSAN, GCSANConfig
from tests.models import checks
from tests.models.checks import ITEMS, SESSIONS, sessions


def make(**changes) -> GCSAN:
    torch.manual_seed(3)
    return (
        GCSAN(ITEMS, replace(GCSANConfig(d=8, max_length=9), **changes)).double().eval()
    )


def slowly(model: GCSAN, session: list[int]) -> Tensor:
    """S_f of one session."""
    edges = checks.edges_with_anchors(session, model.config.anchors)
    nodes = checks.gated_graph_slowly(
        model.graph, checks.look_up(model, session), edges
    )
    hidden = nodes
    for layer in model.attention:
        w_query, w_key, w_value = layer.queries_keys_values.weight.chunk(3)
        seen = {}
        for node in hidden:
            logits = [
                (w_query @ hidden[node]) @ (w_key @ hidden[other]) / math.sqrt(8)
                for other in hidden
            ]
            shares = [
                logit.exp() / sum(one.exp() for one in logits) for logit in logits
            ]
            attended = sum(
                share * (w_value @ hidden[other])
                for share, other in zip(shares, hidden, strict=True)
            )
            inner = (layer.first.weight @ attended + layer.first.bias).clamp(min=0)
            seen[node] = layer.second.weight @ inner + layer.second.bias + attended
        hidden = seen
    last = session[-1]
    weight = model.config.weight
    return weight * hidden[last] + (1 - weight) * nodes[last]


@pytest.mark.parametrize("anchors", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("weight", [0.0, 0.6, 1.0])
def test_agrees_with_the_equations(anchors: bool, layers: int, weight: float) -> None:
    checks.assert_agrees(
        make(anchors=anchors, layers=layers, weight=weight),
        slowly,
        SESSIONS,
        checks.FLOAT32,
    )


@given(st.lists(sessions, min_size=1, max_size=4), st.booleans())
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], anchors: bool
) -> None:
    checks.assert_agrees(make(anchors=anchors, layers=2), slowly, batch, checks.FLOAT32)
