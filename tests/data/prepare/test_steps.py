"""Steps of a recipe where the boundary matters; test_prepare.py compares whole recipes with plain versions of them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.prepare import steps
from tests.data import strategies
from tests.helpers import Click, frame, sessions_of


def test_inactivity_of_exactly_the_gap_does_not_cut() -> None:
    clicks = steps.group_sessions(frame([("u", "a", 0), ("u", "b", 1000), ("u", "c", 2001), ("v", "d", 2001)]))
    assert sessions_of(steps.cut_at_inactivity(clicks, 1000)) == [[("a", 0), ("b", 1000)], [("c", 2001)], [("d", 2001)]]


@given(strategies.clicks, st.booleans())
def test_durations_of_sessions(clicks: list[Click], by_time: bool) -> None:
    times: dict[str, list[int]] = {}
    for session, _, time in clicks:
        times.setdefault(session, []).append(time)
    grouped = steps.group_sessions(frame(clicks), by_time)
    assert steps.session_durations(grouped).tolist() == [max(one) - min(one) for one in times.values()]


@pytest.mark.parametrize(
    ("fraction", "left"),
    [("1", ["a b c d", "e f"]), ("3/4", ["a b c", "e f"]), ("1/2", ["a b", "e f"]), ("1/4", ["e f"]), ("1/5", [])],
)
def test_a_fraction_by_hand(fraction: str, left: list[str]) -> None:
    # Samples in the field's order: abc->d, ab->c, a->b, e->f; the most recent of them are the last.
    clicks = frame([("s", item, 0) for item in "abcd"] + [("t", item, 1) for item in "ef"])
    kept = steps.keep_latest_samples(steps.group_sessions(clicks), int(4 * Fraction(fraction)))
    found = kept.group_by("session", maintain_order=True).agg("item")["item"].to_list()
    assert [" ".join(session) for session in found] == left
