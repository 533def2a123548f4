"""Co-click counts against sums worked out by hand and a slow re-statement of the equations."""

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.models.baselines.counting.coclick import CoClick, CoClickConfig
from posrec.nn.batch import SessionBatch

ITEMS = 6
sessions = st.lists(st.lists(st.integers(1, ITEMS), min_size=1, max_size=7), min_size=1, max_size=8)


def counted(log: list[list[int]], **settings: float) -> CoClick:
    model = CoClick(ITEMS, CoClickConfig(**settings))  # type: ignore[arg-type]
    ends = torch.tensor([0, *map(len, log)]).cumsum(0)
    model.count(torch.tensor([item for session in log for item in session], dtype=torch.int32), ends)
    return model


def test_scores_by_hand() -> None:
    """a b c: from a, b counts 1 and c 1/2; from c, b counts 0.5 and a 0.25, being clicked before it."""
    settings = {"recency": 0.0, "smoothing": 0.0, "before": 0.5, "window": 2}
    model = counted([[1, 2, 3]], **settings, decay=0.5, repeat=0.1, repeat_decay=0.2)
    assert model.scores(SessionBatch.of([[1]]))[0, :3].tolist() == pytest.approx([0.1, 2 / 3, 1 / 3])
    from_c, from_a = [1 / 3, 2 / 3], [2 / 3, 1 / 3]  # of a and b; of b and c
    expected = [from_c[0] + 0.1 * 0.2, from_c[1] + 0.5 * from_a[0], 0.5 * from_a[1] + 0.1]
    assert model.scores(SessionBatch.of([[1, 3]]))[0, :3].tolist() == pytest.approx(expected)


def slowly(log: list[list[int]], session: list[int], config: CoClickConfig) -> dict[int, float]:
    counts: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for number, one in enumerate(log):
        weight = math.exp(-config.recency * (len(log) - 1 - number) / len(log))
        for i, earlier in enumerate(one):
            for distance, later in enumerate(one[i + 1 : i + 1 + config.window], start=1):
                if earlier != later:
                    counts[earlier][later] += weight / distance
                    counts[later][earlier] += config.before * weight / distance
    scores: dict[int, float] = defaultdict(float)
    for backward, item in enumerate(reversed(session)):
        total = sum(counts[item].values())
        for other, count in counts[item].items():
            scores[other] += config.decay**backward * count / (total + config.smoothing)
    for item in set(session):
        scores[item] += config.repeat * config.repeat_decay ** session[::-1].index(item)
    return scores


@given(sessions, st.lists(st.integers(1, ITEMS), min_size=1, max_size=6))
def test_scores_agree_with_a_slow_restatement(log: list[list[int]], session: list[int]) -> None:
    model = counted(log)
    found, expected = model.scores(SessionBatch.of([session]))[0], slowly(log, session, model.config)
    for item in range(1, ITEMS + 1):
        if item in expected:
            assert float(found[item - 1]) == pytest.approx(expected[item], rel=1e-4, abs=1e-6)
        else:
            assert -1 <= float(found[item - 1]) < 0  # by popularity, below every item with a score


def test_only_the_best_neighbours_are_kept() -> None:
    model = counted([[1, 2], [1, 2], [1, 3]], neighbours=1)
    scores = model.scores(SessionBatch.of([[1]]))[0]
    assert (scores[1] > 0, scores[2] > 0) == (True, False)
