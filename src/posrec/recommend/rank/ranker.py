"""The one ranker: the best items for many queries, each with its own k and its own items left out or allowed.

`Recommender.recommend`, `posrec score` and the server all rank here. Items are found in one of two ways:

- by all scores (by_scores.py): the model scores every item, the items left out are set to -inf, and the top k are
  taken. It works for every model, on a CPU and on a GPU, and is the quickest way for large batches.
- by search (`BySearch`): the model, or its ONNX export, gives session vectors, and an exact search (search.py) or
  faiss (faiss_search.py) finds the items. It is the quickest way for small batches on a CPU, which is what the server
  has, and with an ONNX export it needs no torch.

A query of which no click is known gets the most clicked items.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from posrec.recommend.catalogue import Candidates
from posrec.recommend.export.encoder import SessionEncoder, padded
from posrec.recommend.rank.best_items import Best, Columns, Floats, Mask, best_of_some
from posrec.recommend.rank.own_terms import OwnItemArrays
from posrec.recommend.rank.search import ExactSearch
from posrec.recommend.session import EncodedSession

if TYPE_CHECKING:
    from posrec.recommend.rank.faiss_search import FaissSearch

SCORES_AT_ONCE = 1 << 25  # floats: 128 MB, whatever the size of the catalogue
MOST_ROWS = 1024

Ranking = tuple[list[int], list[float]]  # item numbers and their scores, the best first


@dataclass(frozen=True)
class Query:
    """A session, and which items are asked for."""

    session: EncodedSession
    k: int
    exclude_seen: bool = False  # leave out every item of the session, also clicks too old for the model to read
    candidates: Candidates | None = None  # None: every item
    denied: frozenset[int] = frozenset()  # the numbers of a few more items to leave out

    @property
    def few_columns(self) -> Columns | None:
        """The columns of the candidates where they are few."""
        return self.candidates.few if self.candidates is not None else None

    @property
    def mask(self) -> Mask | None:
        return self.candidates.mask if self.candidates is not None else None

    @cached_property
    def left_out(self) -> frozenset[int]:
        """The numbers of candidates that must not be recommended."""
        return self.denied.union(self.session.numbers) if self.exclude_seen else self.denied


class ItemFinder(Protocol):
    """One of the ways to find the best items for sessions with at least one known click."""

    kind: str  # exact, faiss or "all scores"
    recall: float  # the share of the exact best 20 items that is found
    max_length: int  # the number of latest clicks that are read
    has_own_items: bool  # whether there is a term for the session's own items, so that scores are log probabilities

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """The best items of every query; fewer than its k where too few are left."""


class BySearch:
    """`encoder` gives session vectors, `search` finds their items.

    If the model has a term for the session's own items (nn/items/own_items.py), the scores of all other items are their
    products plus a number that is the same for all of them; the own items are ranked among them by their own scores.
    """

    def __init__(self, encoder: SessionEncoder, search: "ExactSearch | FaissSearch") -> None:
        self.encoder, self.search = encoder, search
        self.kind, self.max_length, self.has_own_items = search.kind, encoder.config.max_length, encoder.has_own_items
        self.recall, self.items = search.recall, len(search.table)

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        sessions = [query.session.numbers for query in queries]
        vectors, own = self.encoder.encode(*padded(sessions, self.max_length, self.encoder.stride))
        return self.best(vectors, queries) if own is None else self.best_with_own_items(vectors, own, queries)

    def best(self, vectors: Floats, queries: Sequence[Query]) -> list[Ranking]:
        """For session vectors [B, d]. It searches for more items than k, since some of them may have to be left out."""
        rankings: list[Ranking] = [([], [])] * len(queries)
        searched: list[int] = []  # rows
        wanted: list[int] = []
        for row, query in enumerate(queries):
            most = query.k + len(query.left_out)
            columns = query.few_columns
            if columns is None:
                searched.append(row)
                wanted.append(min(most, self.items))
            else:
                rankings[row] = ranking(best_of_some(self.search.table, vectors[row], columns, most), query)
        if searched:
            masks = [queries[row].mask for row in searched]
            for row, best in zip(searched, self.search.best(vectors[searched], wanted, masks), strict=True):
                rankings[row] = ranking(best, queries[row])
        return rankings

    def best_with_own_items(self, vectors: Floats, own: OwnItemArrays, queries: Sequence[Query]) -> list[Ranking]:
        """As `best`. Every session needs log Z, so those with few candidates search too, for one item."""
        most = [query.k + len(query.left_out) + own.items.shape[1] for query in queries]
        wanted = [
            min(number, self.items) if query.few_columns is None else 1
            for query, number in zip(queries, most, strict=True)
        ]
        masks = [query.mask if query.few_columns is None else None for query in queries]
        found = self.search.best_and_log_sums(vectors, wanted, masks)
        rankings = []
        terms = own.terms([log_sum for _, log_sum in found])
        for row, (query, (best, _), term) in enumerate(zip(queries, found, terms, strict=True)):
            columns = query.few_columns
            if columns is not None:
                best = best_of_some(self.search.table, vectors[row], columns, most[row])
            if query.mask is not None:
                allowed = query.mask[term.columns]
                term = term._replace(columns=term.columns[allowed], scores=term.scores[allowed])
            rankings.append(ranking(term.ranked_with(best), query))
        return rankings


def ranking(best: Best, query: Query) -> Ranking:
    """The k best as item numbers."""
    return kept_items((best[1] + 1).tolist(), best[0].tolist(), query)


def kept_items(items: list[int], scores: list[float], query: Query) -> Ranking:
    """The k best without those that are left out."""
    if left_out := query.left_out:
        kept = [(item, score) for item, score in zip(items, scores, strict=True) if item not in left_out]
        items, scores = [item for item, _ in kept], [score for _, score in kept]
    return items[: query.k], scores[: query.k]


class Ranker:
    """Over items 1..`items`; `popularity [n]` counts their training clicks."""

    def __init__(self, finder: ItemFinder, items: int, popularity: Floats | None) -> None:
        self.finder, self.items, self.popularity = finder, items, popularity

    @property
    def search_kind(self) -> str:
        return self.finder.kind

    @property
    def recall(self) -> float:
        return self.finder.recall

    @property
    def max_length(self) -> int:
        return self.finder.max_length

    @cached_property
    def most_clicked(self) -> Columns:
        """[n] the columns of all items, the most clicked first."""
        assert self.popularity is not None  # Recommender.encode has checked it
        return np.argsort(-self.popularity, kind="stable")

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """The best items of every query; fewer than its k where too few are left."""
        rankings: list[Ranking] = [([], [])] * len(queries)
        for rows in self.chunks(queries):
            chunk = [queries[row] for row in rows]
            found = self.finder.rank(chunk) if chunk[0].session.numbers else map(self.popular_items, chunk)
            for row, ranking in zip(rows, found, strict=True):
                rankings[row] = ranking
        return rankings

    def chunks(self, queries: Sequence[Query]) -> Iterator[list[int]]:
        """The rows of a bounded number of queries at a time; those without a known click are kept apart."""
        size = max(1, min(MOST_ROWS, SCORES_AT_ONCE // self.items))
        for known in (True, False):
            rows = [row for row, query in enumerate(queries) if bool(query.session.numbers) == known]
            yield from (rows[start : start + size] for start in range(0, len(rows), size))

    def popular_items(self, query: Query) -> Ranking:
        """The most clicked items that the query allows."""
        assert self.popularity is not None
        columns = self.most_clicked
        if query.mask is not None:
            columns = columns[query.mask[columns]]
        best = columns[: query.k + len(query.left_out)]
        return kept_items((best + 1).tolist(), self.popularity[best].tolist(), query)
