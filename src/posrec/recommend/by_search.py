"""The best items by a search with session vectors.

If the model has a term for the session's own items (nn/own_items.py), the scores of all other items are their products
plus a number that is the same for all of them; the own items are ranked among them by their own scores.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posrec.recommend.best_items import Best, Floats, best_of_some
from posrec.recommend.encoder import SessionEncoder, padded
from posrec.recommend.own_terms import OwnItemArrays
from posrec.recommend.ranker import Query, Ranking, kept_items
from posrec.recommend.search import ExactSearch

if TYPE_CHECKING:
    from posrec.recommend.faiss_search import FaissSearch


class BySearch:
    """`encoder` gives session vectors, `search` finds their items."""

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
