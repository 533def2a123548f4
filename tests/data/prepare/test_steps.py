"""Steps of a recipe where the boundary matters; test_prepare.py tests whole recipes."""

import polars as pl

from posrec.data.prepare import steps
from tests.helpers import frame, sessions_of


def test_inactivity_of_exactly_the_gap_does_not_cut() -> None:
    clicks = steps.group_sessions(
        frame([("u", "a", 0), ("u", "b", 1000), ("u", "c", 2001), ("v", "d", 2001)])
    )
    assert sessions_of(steps.cut_at_inactivity(clicks, 1000)) == [
        [("a", 0), ("b", 1000)],
        [("c", 2001)],
        [("d", 2001)],
    ]


def test_an_event_that_follows_the_same_one_within_a_second_is_a_duplicate() -> None:
    times = {"a": (0, 1000, 2001), "b": (2500, 3400)}
    session = [("s", item, time) for item in times for time in times[item]]
    clicks = frame([*session, ("t", "a", 500)])
    left = steps.drop_duplicates(steps.group_sessions(clicks))
    assert sessions_of(left) == [[("a", 0), ("a", 2001), ("b", 2500)], [("a", 500)]]
    kinds = pl.Series([1, 2, 2, 1, 1, 1], dtype=pl.UInt32)
    clicks = steps.group_sessions(clicks.with_columns(kind=kinds))
    first_session, _ = sessions_of(steps.drop_duplicates(clicks))
    assert first_session == [("a", 0), ("a", 1000), ("a", 2001), ("b", 2500)]
