"""The one ranker: the best items for many queries, each with its own k and its own candidates.

`ScoresRanker` in torch_model.py scores every item, for any model, also on a GPU. `SearchRanker` is
quicker for small batches on a CPU. A session without a known click gets the most clicked items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from posrec.recommend.catalogue import EVERY_ITEM, Candidates
from posrec.recommend.rank.best_items import (
    Best,
    Columns,
    Floats,
    VectorSearch,
    best_of,
)
from posrec.recommend.rank.encoder import Encode, padded
from posrec.recommend.session import EncodedSession

SCORES_IN_MEMORY = 1 << 25  # floats: 128 MB, whatever the size of the catalogue
SESSIONS_IN_MEMORY = 1024

Ranking = list[tuple[int, float]]  # item numbers and their scores, the best first


@dataclass(frozen=True)
class Query:
    session: EncodedSession
    k: int
    candidates: Candidates = EVERY_ITEM
    left_out: frozenset[int] = frozenset()  # the numbers of a few candidates


class Ranker:
    """Ranks items 1..n, whose training clicks `popularity [n]` counts.

    `model` is an OnnxModel, or a model of torch. With a term for own items, scores are log
    probabilities.
    """

    search_kind = "all scores"  # or exact or faiss
    recall = 1.0  # the share of the exact best 20 items that is found

    def __init__(self, model: Any, popularity: Floats) -> None:
        self.popularity = popularity
        self.items = len(popularity)
        self.max_length: int = model.config.max_length
        self.stride: int = model.stride
        self.has_own_items: bool = model.has_own_items

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """The best items of every query; fewer than its k where too few are left."""
        size = max(1, min(SESSIONS_IN_MEMORY, SCORES_IN_MEMORY // self.items))
        known = [query for query in queries if query.session.numbers]
        rankings: list[Ranking] = []
        for start in range(0, len(known), size):
            rankings += self.rank_known(known[start : start + size])
        for position, query in enumerate(queries):
            if not query.session.numbers:
                rankings.insert(position, self.popular_items(query))
        return rankings

    def rank_known(self, queries: Sequence[Query]) -> list[Ranking]:
        """As `rank`, for sessions with a known click."""
        raise NotImplementedError

    @cached_property
    def most_clicked(self) -> Columns:
        """[n] the columns of all items, the most clicked first."""
        return np.argsort(-self.popularity, kind="stable")

    def popular_items(self, query: Query) -> Ranking:
        columns = self.most_clicked
        mask = query.candidates.mask
        if mask is not None:
            columns = columns[mask[columns]]
        columns = columns[: query.k + len(query.left_out)]
        return as_ranking(Best(self.popularity[columns], columns), query)


class SearchRanker(Ranker):
    """`encode` gives session vectors, `search` finds their items.

    A term for the session's own items changes only their scores, and adds one number to all others
    (nn/items/own_items.py), so they are ranked among those that the search finds.
    """

    def __init__(
        self, model: Any, popularity: Floats, encode: Encode, search: VectorSearch
    ) -> None:
        super().__init__(model, popularity)
        self.encode = encode
        self.search = search
        self.search_kind = search.kind
        self.recall = search.recall

    def rank_known(self, queries: Sequence[Query]) -> list[Ranking]:
        sessions = [query.session.numbers for query in queries]
        batch = padded(sessions, self.max_length, self.stride)
        vectors, own_items = self.encode(*batch)
        own_slots = 0 if own_items is None else own_items.items.shape[1]
        # More items than k are found, since some of them may have to be left out.
        counts = [
            min(query.k + len(query.left_out) + own_slots, self.items)
            for query in queries
        ]
        results = self.searched(queries, vectors, counts, own_items is not None)
        best = []
        for row, query in enumerate(queries):
            columns = query.candidates.few
            if columns is None:
                best.append(results[row][0])
            else:
                products = self.search.products(vectors[row], columns)
                best.append(best_of(products, counts[row], columns))
        if own_items is not None:
            log_sums = [log_sum for _, log_sum in results.values()]
            masks = [query.candidates.mask for query in queries]
            best = own_items.ranked_with(best, log_sums, masks)
        return list(map(as_ranking, best, queries))

    def searched(
        self,
        queries: Sequence[Query],
        vectors: Floats,
        counts: Sequence[int],
        with_log_sums: bool,
    ) -> dict[int, tuple[Best, float]]:
        """The results of the search by row. Few candidates are scored one by one instead; if log Z
        is needed, they are searched too, for one item."""
        rows = []
        row_counts = []
        row_masks = []
        for row, query in enumerate(queries):
            is_few = query.candidates.few is not None
            if is_few and not with_log_sums:
                continue
            rows.append(row)
            row_counts.append(1 if is_few else counts[row])
            row_masks.append(None if is_few else query.candidates.mask)
        if not rows:
            return {}
        results = self.search.search(
            vectors[rows], row_counts, row_masks, with_log_sums
        )
        return dict(zip(rows, results, strict=True))


def as_ranking(best: Best, query: Query) -> Ranking:
    """The k best as item numbers, without those that are left out."""
    numbers = (best.columns + 1).tolist()
    ranking = [
        (number, score)
        for number, score in zip(numbers, best.scores.tolist(), strict=True)
        if number not in query.left_out
    ]
    return ranking[: query.k]
