"""NARM against the paper's equations, one session and one click at a time."""

import pytest
import torch
from torch import Tensor

from posrec.models.baselines.narm import NARM, NARMConfig
from tests.models import checks


@pytest.mark.parametrize("softmax", [True, False])
def test_any_session_agrees_with_the_equations(softmax: bool) -> None:
    def slowly(model: NARM, session: list[int]) -> Tensor:
        vectors = [checks.vector(model.embedding, item) for item in session]
        states = checks.gru_slowly(model.recurrent.layers[0], vectors)
        last = states[-1]  # Eq. (5)
        a_1 = model.of_last.weight
        a_2 = model.of_each.weight
        v = model.match.weight[0]
        # Eq. (7), (8)
        alpha = torch.stack(
            [v @ (a_1 @ last + a_2 @ state).sigmoid() for state in states]
        )
        if softmax:
            alpha = alpha.exp() / alpha.exp().sum()
        local = alpha @ torch.stack(states)  # Eq. (6)
        return model.bilinear.weight @ torch.cat([last, local])  # Eq. (9), (10)

    model = checks.build(NARM, NARMConfig(d=5, hidden=6), softmax=softmax)
    checks.assert_agrees(model, slowly, checks.WITH_UNKNOWN)
