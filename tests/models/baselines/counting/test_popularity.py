"""S-POP: the session's own clicks, then what is popular."""

import itertools
from collections import Counter

from hypothesis import given

from posrec.models.baselines.counting.popularity import SPop, SPopConfig
from tests.models.baselines.counting.small_logs import (
    ITEMS,
    fitted,
    logs,
    scores,
    sessions,
)

# Clicks: 1 once, 2 twice, 3 four times, 4 once, 5 never: places 1 2 3 1 0.
LOG = [[1, 2, 3], [3, 3], [2, 3, 4]]


def test_by_hand() -> None:
    model = fitted(SPop, SPopConfig(), LOG, items=5)
    assert scores(model, [4], [1, 5, 1], [2, 3]) == [
        [1, 2, 3, 1 + 4, 0],
        [1 + 8, 2, 3, 1, 4],
        [1, 2 + 4, 3 + 4, 1, 0],
    ]


@given(logs, sessions)
def test_order_is_that_of_plain_counts(
    log: list[list[int]], session: list[int]
) -> None:
    [row] = scores(fitted(SPop, SPopConfig(), log), session)
    clicks = Counter(item for past in log for item in past)
    in_session = Counter(session)
    counts = [(in_session[item], clicks[item]) for item in range(1, ITEMS + 1)]
    for first, second in itertools.product(range(ITEMS), repeat=2):
        assert (row[first] > row[second]) == (counts[first] > counts[second])


def test_counts_stay_exact_beside_a_large_popularity() -> None:
    """A million clicks on one item: 200 clicks in the session and the order of the rest both
    survive float32."""
    log = [[1] * 1_000_000, [2] * 999_999, [3, 3], [4]]
    [row] = scores(fitted(SPop, SPopConfig(), log, items=4), [4] * 200)
    assert row == [3, 2, 1, 200 * 4]
