"""BPR-MF: a session is the mean of its items' vectors."""

import torch
from torch import Tensor

from posrec.models.baselines.bprmf import BPRMF, BPRMFConfig
from posrec.nn.batch import SessionBatch
from tests.models import sequence_checks as checks


def make() -> BPRMF:
    torch.manual_seed(3)
    return BPRMF(checks.ITEMS, BPRMFConfig(d=5)).double().eval()


def test_a_score_by_hand() -> None:
    model = BPRMF(2, BPRMFConfig(d=2))
    with torch.no_grad():
        model.embedding.weight[:2] = torch.tensor([[1.0, 0.0], [2.0, 4.0]])
    assert model.scores(SessionBatch.of([[1, 2]])).tolist() == [[1.5, 11.0]]  # the mean is (1.5, 2)


def test_any_session_is_the_mean_of_its_items() -> None:
    model = make()

    def slowly(session: list[int]) -> Tensor:
        total = sum(checks.vector(model.embedding, item) for item in session)
        return total / len(session)

    checks.agrees_with(model, slowly)


def test_it_keeps_the_contract() -> None:
    checks.ignores_padding_and_other_sessions(make())
    checks.scores_extremes_finitely(make())
    checks.scores_unknown_items_alike(make())
    checks.gives_every_weight_a_gradient(make())
