"""Every step of a recipe against a slow and plain version of it."""

from collections import Counter
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posrec.data import steps
from tests.data import reference, strategies
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


@given(strategies.clicks, st.integers(1, 12))
def test_rare_items(clicks: list[Click], minimum: int) -> None:
    counts = Counter(item for _, item, _ in clicks)
    expected = [[click for click in session if counts[click[0]] >= minimum] for session in grouped(clicks)]
    kept = steps.drop_rare_items(steps.group_sessions(frame(clicks)), minimum)
    assert sessions_of(kept) == [session for session in expected if session]


@given(strategies.clicks, st.integers(1, 4), st.integers(1, 8))
def test_the_fixpoint_holds_and_is_the_largest(clicks: list[Click], length: int, support: int) -> None:
    kept = sessions_of(steps.drop_until_stable(steps.group_sessions(frame(clicks)), length, support))
    expected = grouped(clicks)
    while True:  # one offender at a time, in an order of its own: the fixpoint does not depend on it
        counts = Counter(item for session in expected for item, _ in session)
        rare = next((item for item, count in counts.items() if count < support), None)
        if rare is not None:
            expected = [[click for click in session if click[0] != rare] for session in expected]
        elif any(len(session) < length for session in expected):
            expected = [session for session in expected if len(session) >= length]
        else:
            break
    assert kept == [session for session in expected if session]


@given(strategies.clicks.filter(len), st.sampled_from([1, 1000, steps.DAY]))
def test_a_session_is_dated_by_its_last_click(clicks: list[Click], resolution: int) -> None:
    dates = steps.session_dates(steps.group_sessions(frame(clicks), by_time=False), resolution)
    assert dates.tolist() == [session[-1][1] // resolution * resolution for session in grouped(clicks, by_time=False)]


@given(strategies.clicks, st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_sorting_by_date_is_stable_and_moves_whole_sessions(clicks: list[Click], dates: list[int]) -> None:
    ordered = steps.sort_by_date(steps.group_sessions(frame(clicks)), np.array(dates))
    before = grouped(clicks)
    order = sorted(range(len(before)), key=lambda number: dates[number])
    assert sessions_of(ordered) == [before[number] for number in order]
    assert ordered["session"].unique(maintain_order=True).to_list() == list(range(len(before)))


@given(strategies.clicks)
def test_sorting_by_first_click(clicks: list[Click]) -> None:
    ordered = steps.sort_by_first_click(steps.group_sessions(frame(clicks)))
    assert sessions_of(ordered) == sorted(grouped(clicks), key=lambda session: session[0][1])


@given(
    strategies.clicks.filter(len),
    st.lists(st.integers(0, 6).map(lambda half: half * steps.DAY // 2), min_size=8, max_size=8),
    st.sampled_from([0.5, 1, 2]),
)
def test_the_fields_split_loses_what_is_on_the_boundary(clicks: list[Click], dates: list[int], days: float) -> None:
    train, test = steps.split_around_date(steps.group_sessions(frame(clicks)), np.array(dates), days)
    dated = list(zip(dates, grouped(clicks), strict=False))
    boundary = max(date for date, _ in dated) - days * steps.DAY
    assert sessions_of(train) == [session for date, session in dated if date < boundary]
    assert sessions_of(test) == [session for date, session in dated if date > boundary]


@given(
    strategies.clicks.filter(len), st.none() | st.sampled_from([0.25, 1, 5]), st.sampled_from([0.01, 0.1, 0.5, 0.99])
)
def test_the_clean_split_loses_nothing(clicks: list[Click], days: float | None, share: float) -> None:
    train, test = steps.split_at_first_click(steps.group_sessions(frame(clicks)), days, share)
    sessions = grouped(clicks)
    begun = sorted(session[0][1] for session in sessions)
    boundary = begun[-max(1, round(share * len(begun)))] if days is None else begun[-1] - days * steps.DAY
    assert sessions_of(train) == [session for session in sessions if session[0][1] < boundary]
    assert sessions_of(test) == [session for session in sessions if session[0][1] >= boundary]


@given(strategies.clicks, strategies.clicks)
def test_unseen_items(test: list[Click], train: list[Click]) -> None:
    known = {item for _, item, _ in train}
    kept = steps.drop_unseen_items(steps.group_sessions(frame(test)), steps.group_sessions(frame(train)))
    expected = [[click for click in session if click[0] in known] for session in grouped(test)]
    assert sessions_of(kept) == [session for session in expected if session]


@given(strategies.clicks, st.fractions(0, 1).filter(bool))
def test_recent_samples_are_those_of_the_field(clicks: list[Click], fraction: Fraction) -> None:
    sessions = [[item for item, _ in session] for session in grouped(clicks) if len(session) > 1]
    whole = steps.drop_short_sessions(steps.group_sessions(frame(clicks)), 2)
    kept = [[item for item, _ in session] for session in sessions_of(steps.keep_recent_samples(whole, fraction))]
    assert reference.samples(kept) == reference.recent(sessions, fraction)


@pytest.mark.parametrize(
    ("fraction", "left"),
    [("1", ["a b c d", "e f"]), ("3/4", ["a b c", "e f"]), ("1/2", ["a b", "e f"]), ("1/4", ["e f"]), ("1/5", [])],
)
def test_a_fraction_by_hand(fraction: str, left: list[str]) -> None:
    # Samples in the field's order: abc->d, ab->c, a->b, e->f; the most recent of them are the last.
    clicks = frame([("s", item, 0) for item in "abcd"] + [("t", item, 1) for item in "ef"])
    kept = steps.keep_recent_samples(steps.group_sessions(clicks), Fraction(fraction))
    assert [" ".join(item for item, _ in session) for session in sessions_of(kept)] == left
