"""The one ranker: the best items for many queries, each with its own k and its own items left out or allowed.

`Recommender.recommend`, `posrec score` and the server all rank here. Items are found in one of two ways:

- all scores: the model scores every item, the items left out are set to -inf, and the top k are taken. It works for
  every model, on a CPU and on a GPU, and is the quickest way for large batches.
- search: the model (or its ONNX export) gives session vectors, and an exact search (search.py) or faiss
  (faiss_search.py) finds the items. It is the quickest way for small batches on a CPU, which is what the server has.
  If the model has a term for the session's own items (nn/own_items.py), the scores of all other items are their
  products plus a number that is the same for all of them; the own items are ranked among them by their own scores.

A query of which no click is known gets the most clicked items.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posrec.nn.batch import SessionBatch
from posrec.nn.own_items import OwnItems
from posrec.recommend.candidates import Candidates
from posrec.recommend.search import Best, Columns, ExactSearch, Floats, Mask, best_of_some, ordered, top
from posrec.recommend.session import EncodedSession

if TYPE_CHECKING:
    from posrec.recommend.faiss_search import FaissSearch

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


class Ranker:
    """`scorer` has `scores(batch)`, or `sessions_and_own_items(batch)` where there is a `search`; see the module's
    text."""

    def __init__(
        self,
        scorer: Any,
        max_length: int,
        items: int,
        popularity: Tensor | None,
        device: torch.device,
        search: "ExactSearch | FaissSearch | None" = None,
    ) -> None:
        self.scorer, self.max_length, self.items = scorer, max_length, items
        self.popularity, self.device, self.search = popularity, device, search

    @property
    def search_kind(self) -> str:
        """exact, faiss, or "all scores" without a search."""
        return self.search.kind if self.search is not None else "all scores"

    @property
    def recall(self) -> float:
        """The share of the exact best 20 items that is found."""
        return self.search.recall if self.search is not None else 1.0

    @torch.inference_mode()
    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """The best items of every query; fewer than its k where too few are left."""
        rankings: list[Ranking] = [([], [])] * len(queries)
        for rows in self.chunks(queries):
            chunk = [queries[row] for row in rows]
            for row, ranking in zip(rows, self.rank_chunk(chunk), strict=True):
                rankings[row] = ranking
        return rankings

    def chunks(self, queries: Sequence[Query]) -> Iterator[list[int]]:
        """The rows of a bounded number of queries at a time; those without a known click are kept apart."""
        size = max(1, min(MOST_ROWS, SCORES_AT_ONCE // self.items))
        for known in (True, False):
            rows = [row for row, query in enumerate(queries) if bool(query.session.numbers) == known]
            yield from (rows[start : start + size] for start in range(0, len(rows), size))

    def rank_chunk(self, queries: Sequence[Query]) -> list[Ranking]:
        if not queries[0].session.numbers:
            assert self.popularity is not None  # Recommender.encode has checked it
            return self.best_of_scores(self.popularity.expand(len(queries), -1), queries)
        batch = SessionBatch.of([query.session.numbers for query in queries], self.max_length)
        if self.search is not None:
            vectors, own = self.scorer.sessions_and_own_items(batch)
            return self.best_by_search(vectors.numpy(), own, queries)
        scores = self.scorer.scores(batch.to(self.device)).to(self.device, torch.float32)
        return self.best_of_scores(scores, queries)

    def best_of_scores(self, scores: Tensor, queries: Sequence[Query]) -> list[Ranking]:
        """Of the scores [B, n] of all items."""
        if any(query.candidates is not None for query in queries):
            scores = scores.masked_fill(self.excluded(queries), -torch.inf)
        left_out = [(row, item) for row, query in enumerate(queries) for item in query.left_out]
        if left_out:
            rows, items = torch.tensor(left_out, device=self.device).T
            scores = scores.index_put((rows, items - 1), scores.new_tensor(-torch.inf))
        best, columns = (part.cpu() for part in top(scores, min(max(query.k for query in queries), self.items)))
        rankings = []
        for query, values, numbers in zip(queries, best.tolist(), (columns + 1).tolist(), strict=True):
            kept = [value for value in values[: query.k] if value != -torch.inf]
            rankings.append((numbers[: len(kept)], kept))
        return rankings

    def excluded(self, queries: Sequence[Query]) -> Tensor:
        """[n] where all queries have the same candidates, as those of a file have, else [B, n]."""
        first = queries[0].candidates
        if first is not None and all(query.candidates is first for query in queries):
            return first.excluded.to(self.device)
        every = torch.zeros(self.items, dtype=torch.bool)
        masks = [query.candidates.excluded if query.candidates is not None else every for query in queries]
        return torch.stack(masks).to(self.device)

    def best_by_search(self, vectors: Floats, own: OwnItems | None, queries: Sequence[Query]) -> list[Ranking]:
        """For session vectors [B, d]. It searches for more items than k, since some of them may have to be left out."""
        assert self.search is not None
        if own is not None:
            return self.best_with_own_items(vectors, own, queries)
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
                rankings[row] = without_left_out(best_of_some(self.search.table, vectors[row], columns, most), query)
        if searched:
            masks = [queries[row].mask for row in searched]
            for row, best in zip(searched, self.search.best(vectors[searched], wanted, masks), strict=True):
                rankings[row] = without_left_out(best, queries[row])
        return rankings

    def best_with_own_items(self, vectors: Floats, own: OwnItems, queries: Sequence[Query]) -> list[Ranking]:
        """As `best_by_search`. Every session needs log Z, so those with few candidates search too, for one item."""
        assert self.search is not None
        most = [query.k + len(query.left_out) + own.items.shape[1] for query in queries]
        wanted = [
            min(number, self.items) if query.few_columns is None else 1
            for query, number in zip(queries, most, strict=True)
        ]
        masks = [query.mask if query.few_columns is None else None for query in queries]
        found = self.search.best_and_log_sums(vectors, wanted, masks)
        rankings = []
        terms = own_terms(own, torch.tensor([log_sum for _, log_sum in found]))
        for row, (query, (best, _), term) in enumerate(zip(queries, found, terms, strict=True)):
            columns = query.few_columns
            if columns is not None:
                best = best_of_some(self.search.table, vectors[row], columns, most[row])
            if query.mask is not None:
                allowed = query.mask[term.columns]
                term = term._replace(columns=term.columns[allowed], scores=term.scores[allowed])
            rankings.append(without_left_out(term.ranked_with(best), query))
        return rankings


class OwnTerm(NamedTuple):
    """The session's own items as the search needs them, of one session."""

    columns: Columns  # [r]
    scores: Floats  # [r] log p
    offset: float  # log p - z of every other item

    def ranked_with(self, best: Best) -> Best:
        """The own items among the items with the best products."""
        others = ~np.isin(best[1], self.columns)
        scores = np.concatenate([self.scores, best[0][others] + np.float32(self.offset)])
        return ordered(scores, np.concatenate([self.columns, best[1][others]]), len(scores))


def own_terms(own: OwnItems, log_sums: Tensor) -> Iterator[OwnTerm]:
    """log Z [B] -> the term of each session."""
    scores, offsets = own.log_chances(log_sums).numpy(), (own.explore - own.log_normaliser(log_sums)).tolist()
    known = own.known.numpy()
    for row, items in enumerate(own.items.numpy()):
        yield OwnTerm(items[known[row]] - 1, scores[row, known[row]], offsets[row])


def without_left_out(best: Best, query: Query) -> Ranking:
    """The k best as item numbers."""
    scores, items, left_out = best[0].tolist(), (best[1] + 1).tolist(), query.left_out
    if left_out:
        kept = [(item, score) for item, score in zip(items, scores, strict=True) if item not in left_out]
        items, scores = [item for item, _ in kept], [score for _, score in kept]
    return items[: query.k], scores[: query.k]
