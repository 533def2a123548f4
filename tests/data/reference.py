"""Slow and plain versions of the two recipes, written from their descriptions; they share no code
with the package."""

from collections import Counter
from fractions import Fraction

DAY = 86_400_000
Session = list[str]
Split = tuple[list[Session], list[Session]]


def read_yoochoose(
    clicks: list[tuple[str, str, int]],
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
    """(session, item, timeframe, day): inside a session by timeframe; the date is the last-read
    click's day."""
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
    return train, known_only(train, test, length)


def known_only(train: list[Session], test: list[Session], length: int) -> list[Session]:
    """Test sessions without items that training lacks, those still long enough."""
    known = {item for session in train for item in session}
    test = [[item for item in session if item in known] for session in test]
    return [session for session in test if len(session) >= length]


def samples(sessions: list[Session]) -> list[tuple[Session, str]]:
    """Every prefix with its target, session by session, longest first: the field's order."""
    return [
        (session[:-i], session[-i])
        for session in sessions
        for i in range(1, len(session))
    ]


def recent(sessions: list[Session], fraction: Fraction) -> list[tuple[Session, str]]:
    listed = samples(sessions)
    wanted = int(len(listed) * fraction)
    return listed[len(listed) - wanted :]


def numbered(
    train: list[Session], test: list[Session]
) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """Items numbered from 1 as training first meets them, then test."""
    numbers: dict[str, int] = {}
    parts = [
        [
            [numbers.setdefault(item, len(numbers) + 1) for item in session]
            for session in part
        ]
        for part in (train, test)
    ]
    return parts[0], parts[1], list(numbers)


Event = tuple[str, str, str, int, str]  # session or nothing, user, item, time, kind


def visits(
    events: list[Event],
    gap: int,
    duplicates_dropped: bool = False,
    most: int | None = None,
) -> list[tuple[str, str, int]]:
    """The clicks of events by their session, or by their user, for whom a new visit begins after
    more than `gap`. Duplicates follow the same event within a second; visits of more than `most`
    clicks are left out."""
    by_visitor: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for session, user, item, time, kind in events:
        by_visitor.setdefault(
            ("session", session) if session else ("user", user), []
        ).append((time, item, kind))
    found: list[list[tuple[str, str, int]]] = []
    for (role, name), clicks in by_visitor.items():
        before = 0
        latest = dict[tuple[str, str], int]()
        for place, (time, item, kind) in enumerate(
            sorted(clicks, key=lambda click: click[0])
        ):
            if place == 0 or (role == "user" and time - before > gap):
                found.append([])
                latest = {}
            if not duplicates_dropped or time - latest.get((item, kind), -DAY) > 1000:
                found[-1].append((f"{role} {name} {len(found)}", item, time))
            before = latest[item, kind] = time
    return [
        click
        for visit in found
        if most is None or len(visit) <= most
        for click in visit
    ]


def clean(
    clicks: list[tuple[str, str, int]],
    *,
    gap: int | None = None,
    repeats_dropped: bool = False,
    longest: int | None = None,
    support: int = 5,
    length: int = 2,
    days: float | None = None,
    share: float = 0.1,
) -> Split:
    """Filters repeated until they hold, sessions split by their first click, none lost on the
    boundary."""
    by_user: dict[str, list[tuple[int, str]]] = {}
    for session, item, time in clicks:
        by_user.setdefault(session, []).append((time, item))
    sessions: list[list[tuple[int, str]]] = []
    for timed in by_user.values():
        timed = sorted(timed, key=lambda click: click[0])
        for place, click in enumerate(timed):
            if place == 0 or (gap is not None and click[0] - timed[place - 1][0] > gap):
                sessions.append([])
            sessions[-1].append(click)
    if repeats_dropped:
        sessions = [
            [
                click
                for place, click in enumerate(session)
                if place == 0 or click[1] != session[place - 1][1]
            ]
            for session in sessions
        ]
    if longest is not None:
        sessions = [session[-longest:] for session in sessions]
    while True:
        kept = [session for session in sessions if len(session) >= length]
        counts = Counter(item for session in kept for _, item in session)
        kept = [
            [click for click in session if counts[click[1]] >= support]
            for session in kept
        ]
        kept = [session for session in kept if session]
        if kept == sessions:
            break
        sessions = kept
    if not sessions:
        return [], []
    sessions.sort(key=lambda session: session[0][0])
    beginnings = [session[0][0] for session in sessions]
    if days is not None:
        boundary = beginnings[-1] - days * DAY
    else:
        boundary = beginnings[len(beginnings) - max(1, round(share * len(beginnings)))]
    train = [
        [item for _, item in session]
        for session in sessions
        if session[0][0] < boundary
    ]
    test = [
        [item for _, item in session]
        for session in sessions
        if session[0][0] >= boundary
    ]
    return train, known_only(train, test, length)
