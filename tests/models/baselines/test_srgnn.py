"""SR-GNN against a plain, slow re-statement of its equations, one session at a time."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posrec.models.baselines.srgnn import SRGNN, SRGNNConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks
from tests.models.checks import ITEMS, SESSIONS, sessions


def make(**changes) -> SRGNN:
    torch.manual_seed(3)
    return (
        SRGNN(ITEMS, replace(SRGNNConfig(d=8, max_length=9), **changes)).double().eval()
    )


def slowly(model: SRGNN, session: list[int]) -> Tensor:
    """s_h of one session; Eq. (6) runs over the clicks one by one."""
    nodes = checks.look_up(model, session)
    for _ in range(model.config.steps):
        nodes = checks.gated_graph_slowly(
            model.graph, nodes, checks.edges_with_anchors(session, model.config.anchors)
        )
    last = nodes[session[-1]]
    whole = torch.zeros_like(last)
    for item in session:
        (w_1, w_2), (c_1, c_2) = model.ask.weight.chunk(2), model.ask.bias.chunk(2)
        match = w_1 @ last + c_1 + w_2 @ nodes[item] + c_2
        whole = whole + (model.weigh @ match.sigmoid()) * nodes[item]
    return model.join.weight @ torch.cat([last, whole]) + model.join.bias


@pytest.mark.parametrize("anchors", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_agrees_with_the_equations(anchors: bool, steps: int) -> None:
    checks.assert_agrees(
        make(anchors=anchors, steps=steps), slowly, SESSIONS, checks.FLOAT32
    )


@given(st.lists(sessions, min_size=1, max_size=4), st.booleans())
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], anchors: bool
) -> None:
    checks.assert_agrees(make(anchors=anchors), slowly, batch, checks.FLOAT32)


def test_a_repeated_click_weighs_as_often_as_it_was_made() -> None:
    """a b and a b a b a b have the same nodes; only how often they were clicked, and the edge back,
    differ."""
    model = make()
    seen = []
    model.join.register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0][0, 8:])
    )
    model.session_vectors(SessionBatch.of([[5]]))
    model.session_vectors(SessionBatch.of([[5, 5, 5]]))
    with torch.no_grad():  # a loop's message is the node's own, so silence the graph to see the counts alone
        model.graph.from_message.weight.zero_()
    model.session_vectors(SessionBatch.of([[5]]))
    model.session_vectors(SessionBatch.of([[5, 5, 5]]))
    assert not torch.allclose(3 * seen[0], seen[1])
    assert torch.allclose(3 * seen[2], seen[3])
