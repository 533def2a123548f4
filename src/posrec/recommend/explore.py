"""The items that `explore` gives places to, and whose turn it is: docs/recommending.md."""

from zlib import crc32

import numpy as np

from posrec.data.item_times import CREATED
from posrec.errors import InputError
from posrec.recommend.catalogue import Candidates, Catalogue
from posrec.recommend.filters import is_number, shown
from posrec.recommend.rank.best_items import Mask
from posrec.recommend.session import EncodedSession
from posrec.runs.folder import Run

FEW_CLICKS = 5  # an item with fewer is new; `posrec prepare` leaves them out by default
EXPLORE_DAYS = 7.0  # an item is new for so long, if it is known when it was created
DAY = 86_400_000  # milliseconds
# A fifth of the new items takes turns in the lists of a session, but at least and at most
POOL_SHARE = 5
SMALLEST_POOL = 20
EXPLORE_POOL = 100


def checked_days(days: float | None) -> float:
    if days is None:
        return EXPLORE_DAYS
    if not is_number(days) or not days > 0:
        raise InputError(f"explore_days must be a number above 0, not {shown(days)}")
    return days


class Explorable:
    """The new items that a model knows: by their attributes, or by at least 5 clicks."""

    def __init__(self, run: Run, described_by: list[str]) -> None:
        self.has_few_clicks: Mask = np.asarray(run.popularity) < FEW_CLICKS
        self.is_known = ~self.has_few_clicks
        items = len(self.is_known)
        for name in described_by:
            values = run.vocabulary.columns.get(name, [None] * items)
            self.is_known |= [value is not None for value in values[:items]]
        self.latest: tuple[object, Candidates] = (None, Candidates())

    def at(self, catalogue: Catalogue, now: float, days: float) -> Candidates:
        """Those of a catalogue. The latest result is kept for other requests of a second."""
        key = (catalogue, now, days)
        latest = self.latest
        if latest[0] != key:
            is_new = self.has_few_clicks
            created = catalogue.attributes.moments(CREATED)
            if created is not None:
                age = now - created
                is_young = (age >= 0) & (age < days * DAY)
                is_new = np.where(np.isnan(age), is_new, is_young)
            latest = (key, Candidates(is_new & self.is_known) & catalogue.rules)
            self.latest = latest
        return latest[1]


def explorable_of(run: Run) -> Explorable | None:
    """None for a model that knows items by their clicks alone."""
    if run.attributes is None:
        return None
    return Explorable(run, [column.name for column in run.attributes.reader.columns])


def pool_size(new_items: Candidates) -> int:
    share = len(new_items.numbers) // POOL_SHARE
    return min(max(share, SMALLEST_POOL), EXPLORE_POOL)


def turn_of(session: EncodedSession, now: float) -> int:
    """One more every second, from another number for each session."""
    clicks = f"{session.numbers} {session.unknown}"
    return crc32(clicks.encode()) + int(now // 1000)


def in_turn(numbers: list[int], turn: int) -> list[int]:
    """As many as can take turns, from the one whose turn it is.

    >>> in_turn([3, 5, 8], turn=4)
    [5, 8, 3]
    """
    start = turn % max(1, len(numbers))
    first = numbers[start : start + EXPLORE_POOL]
    return first + numbers[: min(start, EXPLORE_POOL - len(first))]
