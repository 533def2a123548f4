"""Look up items by a part of their id or title, the most clicked first."""

from bisect import bisect_right

import numpy as np

from posrec.recommend.recommender import Recommender
from posrec.server.schemas import ListedItem

SEPARATOR = "\n"


class ItemSearch:
    """Holds all ids and titles as one long text, so that a lookup is a single `str.find` and not a loop over items."""

    def __init__(self, recommender: Recommender) -> None:
        self.recommender = recommender
        numbers = range(1, recommender.items + 1)
        clicks = None if recommender.popularity is None else recommender.popularity.astype(np.int64).tolist()
        self.clicks: list[int] | None = clicks
        self.order = list(numbers) if clicks is None else sorted(numbers, key=lambda number: -clicks[number - 1])
        lines = [f"{recommender.vocabulary.item(n)}\t{recommender.title(n) or ''}".lower() for n in self.order]
        lines = [line.replace(SEPARATOR, " ") for line in lines]
        self.starts, start = [], 0
        for line in lines:
            self.starts.append(start)
            start += len(line) + 1
        self.text = SEPARATOR.join(lines)

    def find(self, query: str, limit: int) -> list[ListedItem]:
        """Up to `limit` items whose id or title contains the query; without a query, the most clicked."""
        wanted = query.strip().lower()
        if not wanted:
            return [self.listed(number) for number in self.order[:limit]]
        if SEPARATOR in wanted or "\t" in wanted:
            return []
        found: list[ListedItem] = []
        place = self.text.find(wanted)
        while place >= 0 and len(found) < limit:
            line = bisect_right(self.starts, place) - 1
            found.append(self.listed(self.order[line]))
            end = self.starts[line + 1] if line + 1 < len(self.starts) else len(self.text)
            place = self.text.find(wanted, end)
        return found

    def listed(self, number: int) -> ListedItem:
        clicks = None if self.clicks is None else self.clicks[number - 1]
        return ListedItem(self.recommender.vocabulary.item(number), self.recommender.title(number), clicks)
