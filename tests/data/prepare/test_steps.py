"""Every step of a recipe against a slow and plain version of it."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.prepare import steps
from tests.data import strategies
from tests.helpers import Click, frame, rows, sessions_of

Sessions = list[list[tuple[str, int]]]


def grouped(clicks: list[Click], by_time: bool = True) -> Sessions:
    """What group_sessions must give."""
    sessions: dict[str, list[tuple[str, int]]] = {}
    for session, item, time in clicks:
        sessions.setdefault(session, []).append((item, time))
    return [sorted(pairs, key=lambda pair: pair[1]) if by_time else pairs for pairs in sessions.values()]


@given(strategies.clicks, st.booleans())
def test_sessions_are_in_order_of_appearance(clicks: list[Click], by_time: bool) -> None:
    assert sessions_of(steps.group_sessions(frame(clicks), by_time)) == grouped(clicks, by_time)


@given(strategies.clicks)
def test_grouping_categories_is_grouping_strings(clicks: list[Click]) -> None:
    categories = frame(clicks).with_columns(pl.col("session", "item").cast(pl.Categorical(pl.Categories.random())))
    assert rows(steps.group_sessions(categories)) == rows(steps.group_sessions(frame(clicks)))


@given(st.lists(st.integers(0, 9), max_size=30))
def test_numbers_by_appearance(codes: list[int]) -> None:
    numbers, first = steps.number_by_appearance(np.array(codes, dtype=np.uint32))
    distinct = list(dict.fromkeys(codes))
    assert numbers.tolist() == [distinct.index(code) for code in codes]
    assert first.tolist() == [codes.index(code) for code in distinct]


def test_inactivity_of_exactly_the_gap_does_not_cut() -> None:
    clicks = steps.group_sessions(frame([("u", "a", 0), ("u", "b", 1000), ("u", "c", 2001), ("v", "d", 2001)]))
    assert sessions_of(steps.cut_at_inactivity(clicks, 1000)) == [[("a", 0), ("b", 1000)], [("c", 2001)], [("d", 2001)]]


@given(strategies.clicks, st.integers(1, 30 * strategies.HOUR))
def test_cutting_at_inactivity(clicks: list[Click], gap: int) -> None:
    cut: Sessions = []
    for session in grouped(clicks):
        for place, click in enumerate(session):
            if place == 0 or click[1] - session[place - 1][1] > gap:
                cut.append([])
            cut[-1].append(click)
    assert sessions_of(steps.cut_at_inactivity(steps.group_sessions(frame(clicks)), gap)) == cut


@given(strategies.clicks)
def test_immediate_repeats(clicks: list[Click]) -> None:
    kept = steps.drop_repeats(steps.group_sessions(frame(clicks)))
    expected = [[c for i, c in enumerate(s) if i == 0 or s[i - 1][0] != c[0]] for s in grouped(clicks)]
    assert sessions_of(kept) == expected


@given(strategies.clicks, st.integers(1, 5))
def test_latest_clicks(clicks: list[Click], maximum: int) -> None:
    kept = steps.keep_latest_clicks(steps.group_sessions(frame(clicks)), maximum)
    assert sessions_of(kept) == [session[-maximum:] for session in grouped(clicks)]


@given(strategies.clicks, st.integers(1, 5))
def test_short_sessions(clicks: list[Click], minimum: int) -> None:
    kept = steps.drop_short_sessions(steps.group_sessions(frame(clicks)), minimum)
    assert sessions_of(kept) == [session for session in grouped(clicks) if len(session) >= minimum]


@given(strategies.clicks, st.booleans())
def test_the_table_of_sessions_and_their_durations(clicks: list[Click], by_time: bool) -> None:
    frames, sessions = steps.group_sessions(frame(clicks), by_time), grouped(clicks, by_time)
    times = [[time for _, time in session] for session in sessions]
    keys, _, lengths = steps.session_keys(frames, by_date=False)
    assert (keys.tolist(), lengths.tolist()) == ([min(one) for one in times], [len(one) for one in times])
    assert steps.session_durations(frames).tolist() == [max(one) - min(one) for one in times]


@given(strategies.clicks.filter(len), st.sampled_from([1, 1000, steps.DAY]))
def test_a_session_is_dated_by_its_last_click(clicks: list[Click], resolution: int) -> None:
    dated = steps.date_sessions(steps.group_sessions(frame(clicks), by_time=False), resolution)
    dates = dated.group_by("session", maintain_order=True).agg(pl.col("date").unique())["date"].to_list()
    assert dates == [[session[-1][1] // resolution * resolution] for session in grouped(clicks, by_time=False)]


@given(strategies.clicks, st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_sorting_by_date_is_stable_and_moves_whole_sessions(clicks: list[Click], dates: list[int]) -> None:
    given_clicks = steps.group_sessions(frame(clicks))
    dated = given_clicks.with_columns(date=pl.Series([dates[n] for n in given_clicks["session"]], dtype=pl.Int64))
    ordered = steps.sort_sessions(dated, by_date=True)
    before = grouped(clicks)
    order = sorted(range(len(before)), key=lambda number: dates[number])
    assert sessions_of(ordered.drop("date")) == [before[number] for number in order]
    assert ordered["date"].is_sorted()
    assert ordered["session"].unique(maintain_order=True).to_list() == list(range(len(before)))


@given(strategies.clicks)
def test_sorting_by_first_click(clicks: list[Click]) -> None:
    ordered = steps.sort_sessions(steps.group_sessions(frame(clicks)))
    assert sessions_of(ordered) == sorted(grouped(clicks), key=lambda session: session[0][1])
    assert steps.session_starts(ordered).tolist() == sorted(session[0][1] for session in grouped(clicks))
