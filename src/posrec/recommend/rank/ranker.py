"""The one ranker: the best items for many queries, each with its own k and its own candidates.

`ScoresRanker` in torch_model.py scores every item, for any model, also on a GPU. `SearchRanker` is
quicker for small batches on a CPU: an exact search or faiss finds the items of session vectors.
A query of which no click is known gets the most clicked items.
"""

from collections.abc import Iterator, Sequence
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
from posrec.recommend.rank.encoder import SessionEncoder, padded
from posrec.recommend.session import EncodedSession

SCORES_IN_MEMORY = 1 << 25  # floats: 128 MB, whatever the size of the catalogue
SESSIONS_IN_MEMORY = 1024

Ranking = list[tuple[int, float]]  # item numbers and their scores, the best first


@dataclass(frozen=True)
class Query:
    """A session, and which items are asked for."""

    session: EncodedSession
    k: int
    candidates: Candidates = EVERY_ITEM
    left_out: frozenset[int] = (
        frozenset()
    )  # the numbers of candidates that must not be recommended, which are few


class Ranker:
    """Over items 1..n, whose training clicks `popularity [n]` counts.

    Attributes:
        search_kind: exact, faiss or "all scores".
        recall: the share of the exact best 20 items that is found.
        max_length: the number of latest clicks that are read.
        stride: a longer session is read from a multiple of it on.
        has_own_items: whether there is a term for the session's own items, so that scores are log
            probabilities.
    """

    def __init__(
        self, popularity: Floats, search_kind: str, recall: float, model: Any
    ) -> None:
        """`model` is a SessionEncoder, or a model of torch."""
        self.popularity = popularity
        self.items = len(popularity)
        self.search_kind = search_kind
        self.recall = recall
        self.max_length: int = model.config.max_length
        self.stride: int = model.stride
        self.has_own_items: bool = model.has_own_items

    @cached_property
    def most_clicked(self) -> Columns:
        """[n] the columns of all items, the most clicked first."""
        return np.argsort(-self.popularity, kind="stable")

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """The best items of every query; fewer than its k where too few are left."""
        rankings: list[Ranking] = [[]] * len(queries)
        for rows in self.chunks(queries):
            chunk = [queries[row] for row in rows]
            ranked = (
                self.rank_known(chunk)
                if chunk[0].session.numbers
                else map(self.popular_items, chunk)
            )
            for row, ranking in zip(rows, ranked, strict=True):
                rankings[row] = ranking
        return rankings

    def chunks(self, queries: Sequence[Query]) -> Iterator[list[int]]:
        """The rows of a bounded number of queries; those without a known click are separate."""
        size = max(1, min(SESSIONS_IN_MEMORY, SCORES_IN_MEMORY // self.items))
        for known in (True, False):
            rows = [
                row
                for row, query in enumerate(queries)
                if bool(query.session.numbers) == known
            ]
            yield from (
                rows[start : start + size] for start in range(0, len(rows), size)
            )

    def rank_known(self, queries: Sequence[Query]) -> list[Ranking]:
        """As `rank`, for queries with at least one known click."""
        raise NotImplementedError

    def popular_items(self, query: Query) -> Ranking:
        columns = self.most_clicked
        if (mask := query.candidates.mask) is not None:
            columns = columns[mask[columns]]
        best = columns[: query.k + len(query.left_out)]
        return as_ranking((self.popularity[best], best), query)


class SearchRanker(Ranker):
    """`encoder` gives session vectors, `search` finds their items.

    A term for the session's own items changes only their scores, and adds one number to all others
    (nn/items/own_items.py), so they are ranked among those that the search finds.
    """

    def __init__(
        self, encoder: SessionEncoder, search: VectorSearch, popularity: Floats
    ) -> None:
        super().__init__(popularity, search.kind, search.recall, encoder)
        self.encoder = encoder
        self.search = search

    def rank_known(self, queries: Sequence[Query]) -> list[Ranking]:
        """It searches for more items than k, since some of them may have to be left out."""
        sessions = [query.session.numbers for query in queries]
        vectors, own = self.encoder.encode(
            *padded(sessions, self.max_length, self.stride)
        )
        own_slots = 0 if own is None else own.items.shape[1]
        most = [
            min(query.k + len(query.left_out) + own_slots, self.items)
            for query in queries
        ]
        masks = [query.candidates.mask for query in queries]
        few = [
            query.candidates.few for query in queries
        ]  # these candidates are scored one by one
        # With a term for own items every session needs log Z, so those with few candidates search
        # for one item.
        rows = [
            row for row, columns in enumerate(few) if columns is None or own is not None
        ]
        found: dict[int, tuple[Best, float]] = {}
        if rows:
            wanted = [most[row] if few[row] is None else 1 for row in rows]
            allowed = [masks[row] if few[row] is None else None for row in rows]
            results = self.search.search(
                vectors[rows], wanted, allowed, with_log_sums=own is not None
            )
            found = dict(zip(rows, results, strict=True))
        best = [
            found[row][0]
            if columns is None
            else best_of(
                self.search.products(vectors[row], columns), most[row], columns
            )
            for row, columns in enumerate(few)
        ]
        if own is not None:
            best = own.ranked_with(best, [found[row][1] for row in rows], masks)
        return [as_ranking(*one) for one in zip(best, queries, strict=True)]


def as_ranking(best: Best, query: Query) -> Ranking:
    """The k best as item numbers, without those that are left out."""
    ranked = zip((best[1] + 1).tolist(), best[0].tolist(), strict=True)
    return [(item, score) for item, score in ranked if item not in query.left_out][
        : query.k
    ]
