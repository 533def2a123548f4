"""What depends on the whole log, over one part in memory and over many in files, against plain versions."""

from collections import Counter
from fractions import Fraction
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.prepare import recipes, steps
from posrec.data.prepare.parts import ClickParts, Counts, InMemory, Workplace, write_frame
from tests.data import reference, strategies
from tests.helpers import Click, frame

PARTS = 3
Sessions = list[list[tuple[str, int]]]


@pytest.fixture(params=["memory", "files"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_parts(clicks: list[Click], kind: str, folder: Path) -> ClickParts:
    """Grouped clicks; in files, in three parts. Item i7 has the number 7."""
    rows = frame(clicks).with_row_index("row")
    rows = rows.with_columns(pl.col("item").str.slice(1).cast(pl.UInt32), pl.col("row").cast(pl.UInt64))
    if kind == "memory":
        return ClickParts(Workplace(), 10, [InMemory(rows.drop("row"))]).map(steps.group_sessions)
    work = folder / "work"
    for old in sorted(work.rglob("*"), reverse=True):  # of an earlier example
        old.unlink() if old.is_file() else old.rmdir()
    work.mkdir(exist_ok=True)
    number = rows["session"].map_elements(lambda session: crc32(session.encode()) % PARTS, pl.Int64)
    parts = [InMemory(rows.filter(number == one)) for one in range(PARTS)]
    return ClickParts(Workplace(PARTS, work), 10, parts).map(steps.group_sessions)


def sessions_of(clicks: ClickParts) -> Sessions:
    """All sessions, in the order of the parts."""
    found: Sessions = []
    for part in clicks.frames("Reading"):
        for _, session in part.group_by("session", maintain_order=True):
            found.append([(f"i{item}", time) for item, time in session.select("item", "time").iter_rows()])
    return found


def grouped(clicks: list[Click]) -> Sessions:
    sessions: dict[str, list[tuple[str, int]]] = {}
    for session, item, time in clicks:
        sessions.setdefault(session, []).append((item, time))
    return [sorted(pairs, key=lambda pair: pair[1]) for pairs in sessions.values()]


def by_start(sessions: Sessions) -> Sessions:
    return sorted(sessions, key=lambda session: session[0][1])


@given(strategies.clicks, st.integers(1, 12))
def test_rare_items(tmp_path: Path, kind: str, clicks: list[Click], minimum: int) -> None:
    counts = Counter(item for _, item, _ in clicks)
    expected = [[click for click in session if counts[click[0]] >= minimum] for session in by_start(grouped(clicks))]
    given_clicks = in_parts(clicks, kind, tmp_path).sort_sessions()
    kept = given_clicks.map(partial(steps.keep_items, kept=given_clicks.counts.items >= minimum))
    assert sessions_of(kept) == [session for session in expected if session]
    assert kept.counts.clicks == sum(map(len, expected))


@given(strategies.clicks, st.integers(1, 4), st.integers(1, 8))
def test_the_fixpoint_holds_and_is_the_largest(
    tmp_path: Path, kind: str, clicks: list[Click], length: int, support: int
) -> None:
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
    kept = recipes.drop_until_stable(in_parts(clicks, kind, tmp_path), length, support)
    assert sorted(sessions_of(kept)) == sorted(session for session in expected if session)


@given(strategies.clicks)
def test_sessions_are_sorted_and_ties_keep_the_order_of_the_log(tmp_path: Path, kind: str, clicks: list[Click]) -> None:
    ordered = in_parts(clicks, kind, tmp_path).sort_sessions()
    assert sessions_of(ordered) == by_start(grouped(clicks))
    assert (ordered.counts.clicks, ordered.counts.sessions) == (len(clicks), len(grouped(clicks)))


@given(strategies.clicks)
def test_every_change_is_counted(tmp_path: Path, kind: str, clicks: list[Click]) -> None:
    drop_short = partial(steps.drop_short_sessions, minimum=2)
    after = in_parts(clicks, kind, tmp_path).sort_sessions().map(drop_short)
    expected = [session for session in grouped(clicks) if len(session) > 1]
    assert (after.counts.clicks, after.counts.sessions) == (sum(map(len, expected)), len(expected))
    assert np.sum(after.sizes, axis=0).tolist() == ([sum(map(len, expected)), len(expected)] if after.sizes else 0)
    counts = Counter(item for session in expected for item, _ in session)
    assert after.counts.items.tolist() == [counts[f"i{item}"] for item in range(10)]


@given(st.lists(st.integers(0, 2)).map(sorted), st.integers(1, 6))
def test_clicks_are_counted_in_pieces(codes: list[int], together: int) -> None:
    clicks = pl.DataFrame({"session": codes, "item": codes}, schema={"session": pl.UInt32, "item": pl.UInt32})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("posrec.data.prepare.parts.COUNTED_TOGETHER", together)
        counts = Counts.of(clicks, 3)
    assert counts.items.tolist() == [codes.count(code) for code in range(3)]
    assert (counts.clicks, counts.sessions) == (len(codes), len(set(codes)))


@given(strategies.clicks, st.sampled_from([1, 1000, steps.DAY, 30 * steps.DAY]))
def test_sorting_by_a_date_that_many_share(tmp_path: Path, kind: str, clicks: list[Click], resolution: int) -> None:
    dated = in_parts(clicks, kind, tmp_path).map(partial(steps.date_sessions, resolution=resolution))
    expected = sorted(grouped(clicks), key=lambda session: session[-1][1] // resolution)
    assert sessions_of(dated.sort_sessions(by_date=True)) == expected


@given(strategies.clicks, st.integers(1, 30 * strategies.HOUR))
def test_sessions_of_a_user_follow_each_other(tmp_path: Path, kind: str, clicks: list[Click], gap: int) -> None:
    cut: Sessions = []
    for session in grouped(clicks):
        for place, click in enumerate(session):
            if place == 0 or click[1] - session[place - 1][1] > gap:
                cut.append([])
            cut[-1].append(click)
    date = partial(steps.date_sessions, resolution=30 * steps.DAY)
    ours = in_parts(clicks, kind, tmp_path).map(partial(steps.cut_at_inactivity, gap=gap), date)
    expected = sorted(cut, key=lambda session: session[-1][1] // (30 * steps.DAY))
    assert sessions_of(ours.sort_sessions(by_date=True)) == expected


@given(strategies.clicks.filter(len), st.sampled_from([0.5, 1, 2]))
def test_the_fields_split_loses_what_is_on_the_boundary(
    tmp_path: Path, kind: str, clicks: list[Click], days: float
) -> None:
    dated = in_parts(clicks, kind, tmp_path).map(partial(steps.date_sessions, resolution=strategies.HOUR))
    ordered = dated.sort_sessions(by_date=True)
    dates = [session[-1][1] // strategies.HOUR * strategies.HOUR for session in grouped(clicks)]
    latest = [date for date in ordered.collect(steps.latest_date) if date is not None]
    assert max(latest) == max(dates)
    boundary = max(dates) - round(days * steps.DAY)
    train, test = ordered.split(partial(steps.split_around_date, boundary=boundary))
    paired = sorted(zip(dates, grouped(clicks), strict=True), key=lambda pair: pair[0])
    assert sessions_of(train) == [session for date, session in paired if date < boundary]
    assert sessions_of(test) == [session for date, session in paired if date > boundary]


@given(
    strategies.clicks.filter(len), st.none() | st.sampled_from([0.25, 1, 5]), st.sampled_from([0.01, 0.1, 0.5, 0.99])
)
def test_the_clean_split_loses_nothing(
    tmp_path: Path, kind: str, clicks: list[Click], days: float | None, share: float
) -> None:
    ordered = in_parts(clicks, kind, tmp_path).sort_sessions()
    sessions = by_start(grouped(clicks))
    begun = [session[0][1] for session in sessions]
    boundary = begun[-max(1, round(share * len(begun)))] if days is None else begun[-1] - days * steps.DAY + 1
    assert recipes.first_test_moment(ordered, days, share) == boundary
    train, test = ordered.split(partial(steps.split_at_first_click, boundary=boundary))
    assert sessions_of(train) == [session for session in sessions if session[0][1] < boundary]
    assert sessions_of(test) == [session for session in sessions if session[0][1] >= boundary]


@given(strategies.clicks.filter(len), strategies.moments)
def test_splitting_at_any_moment(tmp_path: Path, kind: str, clicks: list[Click], boundary: int) -> None:
    ordered = in_parts(clicks, kind, tmp_path).sort_sessions()
    train, test = ordered.split(partial(steps.split_at_first_click, boundary=boundary))
    sessions = by_start(grouped(clicks))
    assert sessions_of(train) == [session for session in sessions if session[0][1] < boundary]
    assert sessions_of(test) == [session for session in sessions if session[0][1] >= boundary]


@given(strategies.clicks, st.fractions(0, 1).filter(bool))
def test_recent_samples_are_those_of_the_field(
    tmp_path: Path, kind: str, clicks: list[Click], fraction: Fraction
) -> None:
    sessions = [[item for item, _ in session] for session in by_start(grouped(clicks)) if len(session) > 1]
    whole = in_parts(clicks, kind, tmp_path).sort_sessions().map(partial(steps.drop_short_sessions, minimum=2))
    kept = sessions_of(recipes.keep_recent_samples(whole, fraction))
    found = [[item for item, _ in session] for session in kept]
    assert reference.samples(found) == reference.recent(sessions, fraction)


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


def test_a_second_writer_of_a_part_changes_nothing(tmp_path: Path) -> None:
    clicks = pl.DataFrame({"session": [0, 0, 1], "item": [4, 5, 6], "time": [1, 2, 3], "target": [True, False, True]})
    for _ in range(2):
        path = write_frame(clicks, tmp_path / "a")
        assert pl.read_ipc(path).equals(clicks)
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_files_are_removed_as_they_are_used_up(tmp_path: Path) -> None:
    clicks = [(f"s{n % 7}", f"i{n % 3}", n) for n in range(40)]
    after = in_parts(clicks, "files", tmp_path).sort_sessions().map(partial(steps.drop_short_sessions, minimum=1))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(after.parts)
