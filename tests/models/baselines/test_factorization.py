"""BPR-MF: a session is the mean of its items' vectors. FPMC without user: from the last item's
vector for being left to the others' vectors for being reached."""

import torch
from torch import Tensor

from posrec.models.baselines.factorization import BPRMF, FPMC, BPRMFConfig, FPMCConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks

ROWS = torch.tensor([[1.0, 0.0], [2.0, 4.0]])


def test_a_mean_by_hand() -> None:
    model = BPRMF(2, BPRMFConfig(d=2))
    with torch.no_grad():
        model.embedding.weight[:2] = ROWS
    # The mean is (1.5, 2).
    assert model.scores(SessionBatch.of([[1, 2]])).tolist() == [[1.5, 11.0]]


def test_a_transition_by_hand() -> None:
    model = FPMC(2, FPMCConfig(d=2))
    with torch.no_grad():
        model.left.weight[:2] = ROWS
        model.reached.weight[:2] = torch.tensor([[3.0, 1.0], [0.0, 5.0]])
    assert model.scores(SessionBatch.of([[1, 2]])).tolist() == [[10.0, 20.0]]
    assert model.scores(SessionBatch.of([[2, 1]])).tolist() == [[3.0, 0.0]]


def test_any_session_of_bprmf_is_the_mean_of_its_items() -> None:
    def slowly(model: BPRMF, session: list[int]) -> Tensor:
        vectors = [checks.vector(model.embedding, item) for item in session]
        return torch.stack(vectors).sum(0) / len(session)

    model = checks.build(BPRMF, BPRMFConfig(d=5))
    checks.assert_agrees(model, slowly, checks.WITH_UNKNOWN)


def test_any_session_of_fpmc_is_its_last_item() -> None:
    def slowly(model: FPMC, session: list[int]) -> Tensor:
        return checks.vector(model.left, session[-1])

    model = checks.build(FPMC, FPMCConfig(d=5))
    checks.assert_agrees(model, slowly, checks.WITH_UNKNOWN)
