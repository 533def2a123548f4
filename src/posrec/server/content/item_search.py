"""Look up items by a part of their id or title, the most clicked first."""

from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from posrec.recommend.recommender import Recommender
from posrec.server.schemas import ListedItem

SEPARATOR = "\n"


class ItemSearch:
    """Holds all ids and titles as one long text, so that a lookup is a single `str.find`.

    It is made at the first use, and again when the titles have changed: that takes seconds for a
    million items."""

    def __init__(self, recommender: Recommender) -> None:
        self.recommender = recommender
        self.clicks = recommender.popularity.astype(np.int64)
        self.made: tuple[Any, str, list[int]] | None = (
            None  # the titles of the text, the text, where its lines start
        )

    @cached_property
    def order(self) -> list[int]:
        numbers: list[int] = (np.argsort(-self.clicks, kind="stable") + 1).tolist()
        return numbers

    def lines(self) -> tuple[str, list[int]]:
        """A text with a line for each item, and where each line starts."""
        catalogue = self.recommender.catalogue
        if self.made is None or self.made[0] is not catalogue.titles:
            ids = catalogue.vocabulary.ids
            title = catalogue.title
            lines = [
                f"{ids[n - 1]}\t{title(n) or ''}".lower().replace(SEPARATOR, " ")
                for n in self.order
            ]
            starts = list(accumulate((len(line) + 1 for line in lines[:-1]), initial=0))
            self.made = catalogue.titles, SEPARATOR.join(lines), starts
        return self.made[1:]

    def most_clicked(self, limit: int) -> list[ListedItem]:
        return [self.listed(number) for number in self.order[:limit]]

    def find(self, query: str, limit: int) -> list[ListedItem]:
        wanted = query.strip().lower()
        if SEPARATOR in wanted or "\t" in wanted:
            return []
        text, starts = self.lines()
        matches: list[ListedItem] = []
        place = text.find(wanted)
        while place >= 0 and len(matches) < limit:
            line = bisect_right(starts, place) - 1
            matches.append(self.listed(self.order[line]))
            end = starts[line + 1] if line + 1 < len(starts) else len(text)
            place = text.find(wanted, end)
        return matches

    def listed(self, number: int) -> ListedItem:
        title = self.recommender.title(number)
        clicks = int(self.clicks[number - 1])
        return ListedItem(self.recommender.vocabulary.item(number), title, clicks)
