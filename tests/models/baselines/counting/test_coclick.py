"""Co-click counts against sums worked out by hand and a slow re-statement of the equations."""

import math
from collections import defaultdict

import pytest
from hypothesis import given

from posrec.models.baselines.counting.coclick import CoClick, CoClickConfig
from tests.models.baselines.counting.small_logs import (
    fitted,
    logs,
    scores,
    sessions,
    with_rest,
)


def test_scores_by_hand() -> None:
    """a b c: from a, b counts 1 and c 1/2; from c, b counts 0.5 and a 0.25, being clicked before
    it."""
    config = CoClickConfig(
        2, 0.5, recency=0.0, smoothing=0.0, decay=0.5, repeat=0.1, repeat_decay=0.2
    )
    model = fitted(CoClick, config, [[1, 2, 3]], items=3)
    of_a, of_a_and_c = scores(model, [1], [1, 3])
    assert of_a == pytest.approx([0.1, 2 / 3, 1 / 3])
    # of a and b; of b and c
    from_c = [1 / 3, 2 / 3]
    from_a = [2 / 3, 1 / 3]
    expected = [
        from_c[0] + 0.1 * 0.2,
        from_c[1] + 0.5 * from_a[0],
        0.5 * from_a[1] + 0.1,
    ]
    assert of_a_and_c == pytest.approx(expected)


def slowly(
    log: list[list[int]], session: list[int], config: CoClickConfig
) -> dict[int, float]:
    counts: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for number, past in enumerate(log):
        weight = math.exp(-config.recency * (len(log) - 1 - number) / len(log))
        for i, earlier in enumerate(past):
            window = past[i + 1 : i + 1 + config.window]
            for distance, later in enumerate(window, start=1):
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


@given(logs, sessions)
def test_scores_agree_with_a_slow_restatement(
    log: list[list[int]], session: list[int]
) -> None:
    config = CoClickConfig()
    expected = with_rest(slowly(log, session, config), log)
    [row] = scores(fitted(CoClick, config, log), session)
    assert row == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_only_the_best_neighbours_are_kept() -> None:
    log = [[1, 2], [1, 2], [1, 3]]
    [row] = scores(fitted(CoClick, CoClickConfig(neighbours=1), log, items=3), [1])
    assert row[1] > 0 > row[2]
