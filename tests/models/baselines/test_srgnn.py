"""SR-GNN against a plain, slow re-statement of its equations, one session at a time."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from posrec.models.baselines.srgnn import SRGNN, SRGNNConfig
from tests.models import checks
from tests.models.checks import SESSIONS, sessions

SMALL = SRGNNConfig(d=8, max_length=9)


def slowly(model: SRGNN, session: list[int]) -> Tensor:
    """s_h of one session; Eq. (6) runs over the clicks one by one."""
    nodes = checks.look_up(model, session)
    edges = checks.edges_with_anchors(session, model.config.anchors)
    for _ in range(model.config.steps):
        nodes = checks.gated_graph_slowly(model.graph, nodes, edges)
    last = nodes[session[-1]]
    w_1, w_2 = model.ask.weight.chunk(2)
    c_1, c_2 = model.ask.bias.chunk(2)
    weighted = torch.zeros_like(last)
    for item in session:
        match = w_1 @ last + c_1 + w_2 @ nodes[item] + c_2
        weighted = weighted + (model.weigh @ match.sigmoid()) * nodes[item]
    return model.join.weight @ torch.cat([last, weighted]) + model.join.bias


@pytest.mark.parametrize("anchors", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_agrees_with_the_equations(anchors: bool, steps: int) -> None:
    model = checks.build(SRGNN, SMALL, anchors=anchors, steps=steps)
    checks.assert_agrees(model, slowly, SESSIONS, checks.FLOAT32)


@given(st.lists(sessions, min_size=1, max_size=4), st.booleans())
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], anchors: bool
) -> None:
    model = checks.build(SRGNN, SMALL, anchors=anchors)
    checks.assert_agrees(model, slowly, batch, checks.FLOAT32)
