"""Look up items by a part of their id or title, the most clicked first."""

from bisect import bisect_right
from functools import cached_property
from itertools import accumulate

import numpy as np

from posrec.recommend.recommender import Recommender
from posrec.server.schemas import ListedItem

SEPARATOR = "\n"


class ItemSearch:
    """Holds all ids and titles as one long text, so that a lookup is a single `str.find` and not a loop over items.

    The text is made at the first use: it takes seconds for a million items, and most servers never need it.
    """

    def __init__(self, recommender: Recommender) -> None:
        self.recommender = recommender
        self.clicks = recommender.popularity.astype(np.int64)
        self.table: tuple[str, list[int]] | None = None  # the text, and where the line of each item begins

    @cached_property
    def order(self) -> list[int]:
        """The numbers of the items, the most clicked first."""
        numbers: list[int] = (np.argsort(-self.clicks, kind="stable") + 1).tolist()
        return numbers

    @property
    def is_ready(self) -> bool:
        """Whether the text was made already."""
        return self.table is not None

    def prepare(self) -> tuple[str, list[int]]:
        """The text and the starts of its lines, made now unless they were made before."""
        if self.table is None:
            ids, title = self.recommender.vocabulary.ids, self.recommender.title
            lines = [f"{ids[n - 1]}\t{title(n) or ''}".lower().replace(SEPARATOR, " ") for n in self.order]
            starts = list(accumulate((len(line) + 1 for line in lines[:-1]), initial=0))
            self.table = SEPARATOR.join(lines), starts
        return self.table

    def find(self, query: str, limit: int) -> list[ListedItem]:
        """Up to `limit` items whose id or title contains the query; without a query, the most clicked."""
        wanted = query.strip().lower()
        if not wanted:
            return [self.listed(number) for number in self.order[:limit]]
        if SEPARATOR in wanted or "\t" in wanted:
            return []
        text, starts = self.prepare()
        found: list[ListedItem] = []
        place = text.find(wanted)
        while place >= 0 and len(found) < limit:
            line = bisect_right(starts, place) - 1
            found.append(self.listed(self.order[line]))
            end = starts[line + 1] if line + 1 < len(starts) else len(text)
            place = text.find(wanted, end)
        return found

    def listed(self, number: int) -> ListedItem:
        title, clicks = self.recommender.title(number), int(self.clicks[number - 1])
        return ListedItem(self.recommender.vocabulary.item(number), title, clicks)
