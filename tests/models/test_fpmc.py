"""FPMC without user: from the last item's vector for being left to the others' vectors for being reached."""

import torch

from posrec.models.baselines.fpmc import FPMC, FPMCConfig
from posrec.nn.batch import SessionBatch
from tests.models import sequence_checks as checks


def make() -> FPMC:
    torch.manual_seed(3)
    return FPMC(checks.ITEMS, FPMCConfig(d=5)).double().eval()


def test_a_score_by_hand() -> None:
    model = FPMC(2, FPMCConfig(d=2))
    with torch.no_grad():
        model.left.weight[:2] = torch.tensor([[1.0, 0.0], [2.0, 4.0]])
        model.reached.weight[:2] = torch.tensor([[3.0, 1.0], [0.0, 5.0]])
    assert model.scores(SessionBatch.of([[1, 2]])).tolist() == [[10.0, 20.0]]
    assert model.scores(SessionBatch.of([[2, 1]])).tolist() == [[3.0, 0.0]]


def test_any_session_is_its_last_item() -> None:
    model = make()
    checks.agrees_with(model, lambda session: checks.vector(model.left, session[-1]))


def test_it_keeps_the_contract() -> None:
    checks.ignores_padding_and_other_sessions(make())
    checks.scores_extremes_finitely(make())
    checks.scores_unknown_items_alike(make())
    checks.gives_every_weight_a_gradient(make())
