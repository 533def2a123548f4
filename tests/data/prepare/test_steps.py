"""Steps of a recipe where the boundary matters; test_prepare.py compares whole recipes with plain versions of them."""

from fractions import Fraction

import polars as pl
import pytest

from posrec.data.prepare import steps
from tests.helpers import frame, sessions_of


def test_inactivity_of_exactly_the_gap_does_not_cut() -> None:
    clicks = steps.group_sessions(frame([("u", "a", 0), ("u", "b", 1000), ("u", "c", 2001), ("v", "d", 2001)]))
    assert sessions_of(steps.cut_at_inactivity(clicks, 1000)) == [[("a", 0), ("b", 1000)], [("c", 2001)], [("d", 2001)]]


def test_an_event_that_follows_the_same_one_within_a_second_is_a_duplicate() -> None:
    times = {"a": (0, 1000, 2001), "b": (2500, 3400)}
    clicks = frame([("s", item, time) for item in times for time in times[item]] + [("t", "a", 500)])
    kept = steps.drop_duplicates(steps.group_sessions(clicks))
    assert sessions_of(kept) == [[("a", 0), ("a", 2001), ("b", 2500)], [("a", 500)]]
    kinds = steps.group_sessions(clicks.with_columns(kind=pl.Series([1, 2, 2, 1, 1, 1], dtype=pl.UInt32)))
    assert sessions_of(steps.drop_duplicates(kinds))[0] == [("a", 0), ("a", 1000), ("a", 2001), ("b", 2500)]


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
