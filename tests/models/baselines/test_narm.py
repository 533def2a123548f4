"""NARM against the paper's equations, one session and one click at a time."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from posrec.models.baselines.narm import NARM, NARMConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks

SMALL = NARMConfig(d=5, hidden=6)


def make(**changes) -> NARM:
    torch.manual_seed(3)
    return NARM(checks.ITEMS, replace(SMALL, **changes)).double().eval()


@pytest.mark.parametrize("softmax", [True, False])
def test_any_session_agrees_with_the_equations(softmax: bool) -> None:
    def slowly(model: NARM, session: list[int]) -> Tensor:
        states = checks.gru_slowly(
            model.recurrent.layers[0],
            [checks.vector(model.embedding, item) for item in session],
        )
        last = states[-1]  # Eq. (5)
        a_1 = model.of_last.weight
        a_2 = model.of_each.weight
        v = model.match.weight[0]
        alpha = [
            v @ (a_1 @ last + a_2 @ state).sigmoid() for state in states
        ]  # Eq. (7), (8)
        if softmax:
            total = sum(value.exp() for value in alpha)
            alpha = [value.exp() / total for value in alpha]
        local = sum(
            value * state for value, state in zip(alpha, states, strict=True)
        )  # Eq. (6)
        return model.bilinear.weight @ torch.cat([last, local])  # Eq. (9), (10)

    checks.assert_agrees(make(softmax=softmax), slowly, checks.WITH_UNKNOWN)


def test_the_weights_of_a_session_sum_to_one_over_its_clicks() -> None:
    model = make()
    batch = SessionBatch.of(checks.SESSIONS)
    states = torch.randn(*batch.items.shape, 6, dtype=torch.float64)
    weights = model.weights(states, states[:, 0], batch.mask)
    assert torch.allclose(
        weights.sum(1), torch.ones(len(batch.lengths), dtype=torch.float64)
    )
    assert (weights[~batch.mask] == 0).all()
    assert (
        make(softmax=False).weights(states, states[:, 0], batch.mask)[~batch.mask] == 0
    ).all()
