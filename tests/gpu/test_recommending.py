"""A run on a GPU recommends what it recommends on a CPU. Skipped without a GPU."""

import pytest
import torch

from posrec.models.registry import MODELS
from posrec.recommend.recommender import Recommender
from tests.fixtures import by_all_scores, run_of
from tests.helpers import assert_alike

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

IDS = [f"i{number}" for number in range(300)]
SESSIONS = [["i3"], ["i5", "i7", "i5"], ["x", "i9"], [f"i{n}" for n in range(60)], []]


@pytest.mark.parametrize("name", ["posrec-plus", "posrec", "pop"])
def test_the_same_as_by_all_scores_on_a_cpu(name: str) -> None:
    torch.manual_seed(0)
    spec = MODELS[name]
    model = spec.build(len(IDS), spec.config()).eval()
    if not spec.is_trained:
        model.count(torch.arange(1, 301).repeat(3)[:600], torch.tensor([0, 300, 600]))
    run = run_of(model, IDS, name)
    for rules in ({}, {"exclude": "seen", "deny": ["i1"]}, {"allow": ["i5", "i8"]}):
        expected = by_all_scores(run).recommend(SESSIONS, k=9, **rules)
        answers = Recommender(run, "cuda").recommend(SESSIONS, k=9, **rules)
        assert_alike(expected, answers, within=1e-3)
        model.cpu()
