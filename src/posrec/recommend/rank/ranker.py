"""The one ranker: the best items for many queries, each with its own k and its own candidates.

An encoder computes session vectors, a search finds the items with the highest products. A session
without a known click gets the items with the most clicks of late.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from posrec.recommend.catalogue import EVERY_ITEM, Candidates
from posrec.recommend.rank.best_items import (
    Best,
    Columns,
    Floats,
    Found,
    Search,
    best_of,
    joined,
)
from posrec.recommend.rank.encoder import Encoded, Encoder, padded
from posrec.recommend.session import EncodedSession
from posrec.runs.folder import WeightedClicks

SCORES_IN_MEMORY = 1 << 24  # floats: 64 MB, whatever the size of the catalogue

NOTHING = Best(np.empty(0, np.float32), np.empty(0, np.int64))

Ranking = list[tuple[int, float]]  # item numbers and their scores, the best first


@dataclass(frozen=True)
class Query:
    session: EncodedSession
    k: int
    candidates: Candidates = EVERY_ITEM
    left_out: frozenset[int] = frozenset()  # the numbers of a few candidates


class Ranker:
    """Ranks items 1..n, whose `recent [n]` clicks are those of training, the late ones above all.

    If a model has a term for the session's own items, scores are log probabilities. The term
    changes only the scores of these items, and adds one number to all others
    (nn/items/own_items.py), so they are ranked among those that the search finds.
    """

    def __init__(
        self, encoder: Encoder, search: Search, recent: WeightedClicks, cores: int = 1
    ) -> None:
        """`cores` rank many queries side by side."""
        self.encoder = encoder
        self.search = search
        self.recent = recent
        self.items = len(recent)
        self.cores = cores

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """The best items of every query; fewer than its k where too few are left."""
        rankings: list[Ranking] = [[] for _ in queries]
        known = []
        for position, query in enumerate(queries):
            if query.session.numbers:
                known.append(position)
            else:
                rankings[position] = self.popular_items(query)
        size = max(1, min(self.search.at_once, SCORES_IN_MEMORY // self.items))
        if len(known) > size:
            # Sessions of similar length are padded together.
            known.sort(key=lambda position: len(queries[position].session.numbers))
        chunks = [
            [queries[position] for position in known[start : start + size]]
            for start in range(0, len(known), size)
        ]
        if len(chunks) > 1 and self.cores > 1:
            with ThreadPoolExecutor(self.cores) as threads:
                ranked = list(threads.map(self.rank_known, chunks))
        else:
            ranked = [self.rank_known(chunk) for chunk in chunks]
        for position, ranking in zip(known, chain.from_iterable(ranked), strict=True):
            rankings[position] = ranking
        return rankings

    @cached_property
    def most_clicked(self) -> Columns:
        """[n] the columns of all items, the most clicked of late first."""
        return np.argsort(-self.recent, kind="stable")

    def popular_items(self, query: Query) -> Ranking:
        columns = self.most_clicked
        mask = query.candidates.mask
        if mask is not None:
            columns = columns[mask[columns]]
        columns = columns[: query.k + len(query.left_out)]
        scores = self.recent[columns].astype(np.float32)
        return chosen(pairs(Best(scores, columns)), query)

    def rank_known(self, queries: Sequence[Query]) -> list[Ranking]:
        """As `rank`, for sessions with a known click."""
        vectors, own_items = self.encoded([query.session.numbers for query in queries])
        own_slots = 0 if own_items is None else own_items.items.shape[1]
        # More items than k are found, since some of them may have to be left out.
        counts = [
            min(query.k + len(query.left_out) + own_slots, self.items)
            for query in queries
        ]
        found = self.searched(queries, vectors, counts, own_items is not None)
        if own_items is None:
            return [
                chosen(pairs(best), query)
                for best, query in zip(found.best, queries, strict=True)
            ]
        assert found.log_sums is not None
        products = self.search.products(vectors, own_items.columns)
        own_scores, added = own_items.log_chances(products, found.log_sums)
        rows = zip(queries, found.best, own_items.items, own_scores, added, strict=True)
        return [with_own_items(*row) for row in rows]

    def encoded(self, sessions: Sequence[Sequence[int]]) -> Encoded:
        """What the encoder computes. Sessions are padded to the longest of a group, in which none
        has less than half of its clicks, so that most of what is computed is not padding."""
        groups = groups_by_length([self.clicks_read(session) for session in sessions])
        parts = []
        for group in groups:
            batch = padded(
                [sessions[row] for row in group],
                self.encoder.max_length,
                self.encoder.stride,
            )
            parts.append(self.encoder.encode(*batch))
        if len(parts) == 1:
            return parts[0]
        place = np.argsort(list(chain.from_iterable(groups)))
        vectors = np.concatenate([vectors for vectors, _ in parts])[place]
        own_items = [own_items for _, own_items in parts if own_items is not None]
        return vectors, joined(own_items, place) if own_items else None

    def clicks_read(self, session: Sequence[int]) -> int:
        return min(len(session), self.encoder.max_length)

    def searched(
        self,
        queries: Sequence[Query],
        vectors: Floats,
        counts: Sequence[int],
        needs_log_sums: bool,
    ) -> Found:
        """What the search finds. Few candidates are scored one by one instead; if log Z is needed,
        they are searched too, for one item."""
        few = {
            row: query.candidates.few
            for row, query in enumerate(queries)
            if query.candidates.few is not None
        }
        found = Found([NOTHING] * len(queries))
        if needs_log_sums or len(few) < len(queries):
            searched_counts = list(counts)
            masks = [query.candidates.mask for query in queries]
            for row in few:
                searched_counts[row] = 1
                masks[row] = None
            found = self.search.search(vectors, searched_counts, masks)
        for row, columns in few.items():
            products = self.search.products(vectors[row : row + 1], columns[None])
            found.best[row] = best_of(products[0], len(columns), columns)
        return found


def groups_by_length(lengths: Sequence[int]) -> list[Sequence[int]]:
    """Rows whose lengths differ at most by a factor of two.

    >>> groups_by_length([3, 9, 8, 4]), groups_by_length([3, 2])
    ([[1, 2], [3, 0]], [range(0, 2)])
    """
    if 2 * min(lengths) >= max(lengths):
        return [range(len(lengths))]
    groups: list[list[int]] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if 2 * lengths[row] < longest or not groups:
            groups.append([])
            longest = lengths[row]
        groups[-1].append(row)
    return list(groups)


def pairs(best: Best) -> Ranking:
    """As item numbers with their scores."""
    return list(zip((best.columns + 1).tolist(), best.scores.tolist(), strict=True))


def chosen(ranking: Ranking, query: Query) -> Ranking:
    """The k best, without those that are left out."""
    if query.left_out:
        ranking = [item for item in ranking if item[0] not in query.left_out]
    return ranking[: query.k]


def with_own_items(
    query: Query, best: Best, items: Columns, own_scores: Floats, added: float
) -> Ranking:
    """The session's own items, if they are candidates, ranked among the others that were found,
    whose log p is their product plus `added`."""
    mask = query.candidates.mask
    own = dict(zip(items.tolist(), own_scores.tolist(), strict=True))
    own.pop(0, None)  # empty slots
    others = pairs(Best(best.scores + added, best.columns))
    ranking = [item for item in others if item[0] not in own]
    ranking += [
        (number, score)
        for number, score in own.items()
        if mask is None or mask[number - 1]
    ]
    ranking.sort(key=lambda item: -item[1])
    return chosen(ranking, query)
