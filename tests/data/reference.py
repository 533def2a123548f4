"""Slow and plain versions of the two recipes, which share no code with the package."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeVar

DAY = 86_400_000
Clicks = list[tuple[str, str, int]]  # session or visitor, item, time
Session = list[str]
Split = tuple[list[Session], list[Session]]
Item = TypeVar("Item")


def read_yoochoose(
    clicks: Clicks,
) -> tuple[dict[str, Session], dict[str, int]]:
    """File order; a session's date is that of its last-read click, to the second."""
    sessions: dict[str, Session] = {}
    dates: dict[str, int] = {}
    for session, item, time in clicks:
        sessions.setdefault(session, []).append(item)
        dates[session] = time // 1000 * 1000
    return sessions, dates


def read_diginetica(
    clicks: list[tuple[str, str, int, int]],
) -> tuple[dict[str, Session], dict[str, int]]:
    """Clicks (session, item, timeframe, day) in order of the timeframe; a session's date is the
    last-read click's day."""
    timed: dict[str, list[tuple[int, str]]] = {}
    dates: dict[str, int] = {}
    for session, item, timeframe, day in clicks:
        timed.setdefault(session, []).append((timeframe, item))
        dates[session] = day
    ordered = {
        name: [item for _, item in sorted(pairs, key=lambda pair: pair[0])]
        for name, pairs in timed.items()
    }
    return ordered, dates


def paper(
    sessions: dict[str, Session],
    dates: dict[str, int],
    days: float,
    support: int = 5,
    length: int = 2,
) -> Split:
    """The field's preprocessing, as far as the split into training and test sessions."""
    sessions = {name: items for name, items in sessions.items() if len(items) >= length}
    counts = Counter(item for items in sessions.values() for item in items)
    sessions = {
        name: [item for item in items if counts[item] >= support]
        for name, items in sessions.items()
    }
    sessions = {name: items for name, items in sessions.items() if len(items) >= length}
    if not sessions:
        return [], []
    boundary = max(dates[name] for name in sessions) - days * DAY
    by_date = sorted(sessions, key=lambda name: dates[name])
    train = [sessions[name] for name in by_date if dates[name] < boundary]
    test = [sessions[name] for name in by_date if dates[name] > boundary]
    return train, trained_only(train, test, length)


def trained_only(
    train: list[Session], test: list[Session], length: int
) -> list[Session]:
    """Test sessions without items that training lacks, those still long enough."""
    trained = {item for session in train for item in session}
    test = [[item for item in session if item in trained] for session in test]
    return [session for session in test if len(session) >= length]


def samples(sessions: list[list[Item]]) -> list[tuple[list[Item], Item]]:
    """Every prefix with its target, session by session, longest first: the field's order."""
    return [
        (session[:-i], session[-i])
        for session in sessions
        for i in range(1, len(session))
    ]


def recent(sessions: list[Session], fraction: Fraction) -> list[tuple[Session, str]]:
    listed = samples(sessions)
    return listed[len(listed) - int(len(listed) * fraction) :]


def numbered(
    train: list[Session], test: list[Session]
) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """Items numbered from 1 as training first meets them, then test."""
    numbers: dict[str, int] = {}

    def number(item: str) -> int:
        return numbers.setdefault(item, len(numbers) + 1)

    train_numbers = [[number(item) for item in session] for session in train]
    test_numbers = [[number(item) for item in session] for session in test]
    return train_numbers, test_numbers, list(numbers)


Event = tuple[str, str, str, int, str]  # session or nothing, user, item, time, kind


def visits(
    events: list[Event],
    gap: int,
    duplicates_dropped: bool = False,
    most: int | None = None,
) -> Clicks:
    """The clicks of events by their session, or by their user, for whom a new visit begins after
    more than `gap`. Duplicates follow the same event within a second; visits of more than `most`
    clicks are left out."""
    by_visitor: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for session, user, item, time, kind in events:
        visitor = ("session", session) if session else ("user", user)
        by_visitor.setdefault(visitor, []).append((time, item, kind))
    all_visits: list[Clicks] = []
    for (role, name), clicks in by_visitor.items():
        before = None
        latest: dict[tuple[str, str], int] = {}
        for time, item, kind in sorted(clicks, key=lambda click: click[0]):
            if before is None or (role == "user" and time - before > gap):
                all_visits.append([])
                latest = {}
            if not duplicates_dropped or time - latest.get((item, kind), -DAY) > 1000:
                visit = f"{role} {name} {len(all_visits)}"
                all_visits[-1].append((visit, item, time))
            before = time
            latest[item, kind] = time
    short = [visit for visit in all_visits if most is None or len(visit) <= most]
    return [click for visit in short for click in visit]


Timed = list[tuple[int, str]]  # the times and items of a session


@dataclass(frozen=True)
class Options:
    gap: int | None = None
    repeats_dropped: bool = False
    longest: int | None = None
    support: int = 5
    length: int = 2
    days: float | None = None
    share: float = 0.1


def clean(clicks: Clicks, **named: Any) -> Split:
    """Filters repeated until they hold, sessions split by their first click, none lost on the
    boundary."""
    options = Options(**named)
    all_sessions = shortened(clicks, options)
    sessions = filtered(all_sessions, options.support, options.length)
    if not sessions:
        return [], []
    sessions.sort(key=lambda session: session[0][0])
    boundary = test_start(sessions, options)
    train: list[Session] = []
    test: list[Session] = []
    for session in sessions:
        split = train if session[0][0] < boundary else test
        split.append([item for _, item in session])
    return train, trained_only(train, test, options.length)


def full_test(clicks: Clicks, **named: Any) -> list[Session]:
    """The test sessions of `clean` before its filters: those whose first click on an item that the
    filters keep, or else on any, is where the test part begins or later."""
    options = Options(**named)
    all_sessions = shortened(clicks, options)
    sessions = filtered(all_sessions, options.support, options.length)
    kept = {item for session in sessions for _, item in session}
    boundary = test_start(sorted(sessions, key=lambda session: session[0][0]), options)
    full = []
    for session in all_sessions:
        moments = [time for time, item in session if item in kept]
        moment = (moments or [session[0][0]])[0]
        if len(session) >= options.length and moment >= boundary:
            full.append((moment, [item for _, item in session]))
    return [session for _, session in sorted(full, key=lambda pair: pair[0])]


def shortened(clicks: Clicks, options: Options) -> list[Timed]:
    sessions = split_at_gaps(clicks, options.gap)
    if options.repeats_dropped:
        sessions = [without_repeats(session) for session in sessions]
    if options.longest is not None:
        sessions = [session[-options.longest :] for session in sessions]
    return sessions


def test_start(sessions: list[Timed], options: Options) -> float:
    beginnings = [session[0][0] for session in sessions]
    if options.days is not None:
        return beginnings[-1] - options.days * DAY + 1
    return beginnings[-max(1, round(options.share * len(beginnings)))]


def split_at_gaps(clicks: Clicks, gap: int | None) -> list[Timed]:
    by_user: dict[str, Timed] = {}
    for session, item, time in clicks:
        by_user.setdefault(session, []).append((time, item))
    sessions: list[Timed] = []
    for timed in by_user.values():
        before = None
        for time, item in sorted(timed, key=lambda click: click[0]):
            if before is None or (gap is not None and time - before > gap):
                sessions.append([])
            sessions[-1].append((time, item))
            before = time
    return sessions


def without_repeats(session: Timed) -> Timed:
    changes = [click for before, click in pairwise(session) if click[1] != before[1]]
    return session[:1] + changes


def filtered(sessions: list[Timed], support: int, length: int) -> list[Timed]:
    while True:
        long = [session for session in sessions if len(session) >= length]
        counts = Counter(item for session in long for _, item in session)
        frequent = [
            [(time, item) for time, item in session if counts[item] >= support]
            for session in long
        ]
        filled = [session for session in frequent if session]
        if filled == sessions:
            return sessions
        sessions = filled
