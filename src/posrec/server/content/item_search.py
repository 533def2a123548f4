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
    """All ids and titles are one long text, so that a lookup is a `str.find`. It is made when it is
    first needed, and after the titles have changed: that takes seconds for a million items."""

    def __init__(self, recommender: Recommender) -> None:
        self.recommender = recommender
        self.clicks = recommender.popularity.astype(np.int64)
        self.titles: Any = None  # of the text
        self.text = ""  # a line for each item
        self.starts: list[int] = []  # of the lines

    @cached_property
    def order(self) -> list[int]:
        numbers: list[int] = (np.argsort(-self.clicks, kind="stable") + 1).tolist()
        return numbers

    def make_text(self) -> None:
        catalogue = self.recommender.catalogue
        ids = catalogue.vocabulary.ids
        lines = []
        for number in self.order:
            line = f"{ids[number - 1]}\t{catalogue.title(number) or ''}"
            lines.append(line.lower().replace(SEPARATOR, " "))
        lengths = (len(line) + 1 for line in lines[:-1])
        self.starts = list(accumulate(lengths, initial=0))
        self.text = SEPARATOR.join(lines)
        self.titles = catalogue.titles

    def most_clicked(self, limit: int) -> list[ListedItem]:
        return [self.listed(number) for number in self.order[:limit]]

    def find(self, query: str, limit: int) -> list[ListedItem]:
        words = query.strip().lower()
        if SEPARATOR in words or "\t" in words:
            return []
        if not self.text or self.titles is not self.recommender.catalogue.titles:
            self.make_text()
        matches: list[ListedItem] = []
        position = self.text.find(words)
        while position >= 0 and len(matches) < limit:
            next_line = bisect_right(self.starts, position)
            matches.append(self.listed(self.order[next_line - 1]))
            if next_line == len(self.starts):
                break
            position = self.text.find(words, self.starts[next_line])
        return matches

    def listed(self, number: int) -> ListedItem:
        title = self.recommender.catalogue.title(number)
        clicks = int(self.clicks[number - 1])
        return ListedItem(self.recommender.vocabulary.item(number), title, clicks)
