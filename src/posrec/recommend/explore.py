"""The items that `explore` gives places to, and whose turn it is.

An item takes part if it is new and the model knows it; docs/recommending.md says what both mean.
The items take turns: every second the next one comes first, and each session begins at another one.
So the same session has the same list at the same time, in every process.
"""

import math
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
# New items that take turns in the lists of a session: a fifth of all, but at least and at most
EXPLORE_POOL = 100
SMALLEST_POOL = 20
POOL_SHARE = 5


def checked_days(days: float | None) -> float:
    if days is None:
        return EXPLORE_DAYS
    if not is_number(days) or not 0 < days < math.inf:
        raise InputError(f"explore_days must be a number above 0, not {shown(days)}")
    return float(days)


class Explorable:
    """The new items that a model knows: by their attributes, or by at least 5 clicks."""

    def __init__(self, has_few_clicks: Mask, is_described: Mask) -> None:
        self.has_few_clicks = has_few_clicks
        self.is_known = is_described | ~has_few_clicks
        self.latest: tuple[object, Candidates] = (None, Candidates())

    @classmethod
    def of(cls, run: Run) -> "Explorable | None":
        """None for a model that knows items by their clicks alone."""
        if run.attributes is None:
            return None
        is_described = np.zeros(len(run.popularity), np.bool_)
        for column in run.attributes.reader.columns:
            values = run.vocabulary.columns.get(column.name, ())
            is_present = [value is not None for value in values[: len(is_described)]]
            is_described[: len(is_present)] |= is_present
        return cls(np.asarray(run.popularity) < FEW_CLICKS, is_described)

    def at(self, catalogue: Catalogue, now: float, days: float) -> Candidates:
        """Those of a catalogue that are new: created within so many days, or with few clicks if
        it is not known when. The latest result is kept for the other requests of a second."""
        key = (catalogue, now, days)
        latest = self.latest
        if latest[0] != key:
            is_new = self.has_few_clicks
            column = catalogue.attributes.columns.get(CREATED)
            if column is not None:
                age = now - column.moments
                is_young = (age >= 0) & (age < days * DAY)
                is_new = np.where(np.isnan(age), is_new, is_young)
            latest = (key, Candidates(is_new & self.is_known) & catalogue.rules)
            self.latest = latest
        return latest[1]


def pool_size(new_items: Candidates) -> int:
    share = len(new_items.numbers) // POOL_SHARE
    return min(max(share, SMALLEST_POOL), EXPLORE_POOL)


def turn_of(session: EncodedSession, now: float) -> int:
    clicks = f"{session.numbers} {session.unknown}"
    return crc32(clicks.encode()) + int(now // 1000)


def in_turn(numbers: list[int], turn: int) -> list[int]:
    """Some items, as many as take turns, from the one whose turn it is.

    >>> in_turn([3, 5, 8], turn=4)
    [5, 8, 3]
    """
    start = turn % max(1, len(numbers))
    first = numbers[start : start + EXPLORE_POOL]
    return first + numbers[: min(start, EXPLORE_POOL - len(first))]
