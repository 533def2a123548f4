"""Many requests ranked at once, each with its own k and its own items left out; what the server asks of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posrec.errors import InputError
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.recommend.faiss_search import FaissSearch, item_table, read_index
from posrec.recommend.onnx_model import OnnxModel
from posrec.recommend.recommender import Reading, Recommender
from posrec.recommend.search import Best, Columns, ExactSearch, Floats, best_of_all, best_of_some, ordered
from posrec.recommend.topk import top
from posrec.run import Run
from posrec.server.schemas import RecommendAnswer, RecommendedItem


@dataclass(frozen=True)
class Query:
    """A request in item numbers."""

    reading: Reading
    k: int
    left_out: frozenset[int] = frozenset()
    allowed: tuple[int, ...] | None = None  # only these; None where all may be


Found = tuple[list[int], list[float]]  # item numbers and their scores, the best first


class Ranker:
    """Session vectors by ONNX Runtime where `onnx` is given, else by torch; models without vectors score by torch.

    The best items are found exactly, or by faiss where an `index` of the items is given.
    """

    def __init__(self, run: Run, device: str = "cpu", onnx: Path | None = None, index: Path | None = None) -> None:
        self.recommender = Recommender(run, device)
        self.onnx = OnnxModel(onnx, threads=1) if onnx is not None else None
        self.model: Any = self.onnx or run.model
        self.longest: int = self.recommender.model.config.max_length
        self.search: ExactSearch | FaissSearch | None = None
        self.recall = 1.0  # of the search against the exact one
        if isinstance(run.model, SessionModel) and self.recommender.device.type == "cpu":
            if index is not None:
                self.search, self.recall = read_index(run, index)
            else:
                self.search = ExactSearch(item_table(run))

    @property
    def found_by(self) -> str:
        """How the best items are found: exact, faiss, or all scores where there are no vectors or a GPU has them."""
        return self.search.kind if self.search is not None else "all scores"

    def query(
        self,
        session: Sequence[Any],
        k: int,
        exclude_seen: bool,
        allow: Sequence[Any] | None,
        deny: Sequence[Any] | None,
    ) -> Query:
        """A request read; an empty session is one of which nothing is known."""
        rec = self.recommender
        reading = rec.read(session) if session else Reading([], ())
        if not reading.numbers and rec.popularity is None:
            raise InputError("no item of the session is known, and the run does not hold which items are popular")
        left_out = frozenset(reading.numbers) if exclude_seen else frozenset()
        if deny:
            left_out |= frozenset(rec.numbers(deny))
        allowed = None
        if allow is not None:
            allowed = tuple(sorted(set(rec.numbers(allow)) - left_out))
        return Query(reading, k, left_out, allowed)

    @torch.inference_mode()
    def rank(self, queries: Sequence[Query]) -> list[Found]:
        """Of every query the best items, fewer than its k where too few are left."""
        found: list[Found] = [([], [])] * len(queries)
        usual: list[int] = []
        for row, query in enumerate(queries):
            if not query.reading.numbers:
                found[row] = self.popular(query)
            elif query.allowed != ():
                usual.append(row)
        if usual:
            ranked = self.rank_known([queries[row] for row in usual])
            for row, one in zip(usual, ranked, strict=True):
                found[row] = one
        return found

    def rank_known(self, queries: Sequence[Query]) -> list[Found]:
        batch = SessionBatch.of([query.reading.numbers for query in queries], self.longest)
        if self.search is None:
            scores = self.model.scores(batch.to(self.recommender.device)).float().cpu()  # [B, n]
            return [best_of(row, query) for row, query in zip(scores.numpy(), queries, strict=True)]
        vectors = self.model.session_vectors(batch).numpy()  # [B, d]
        found: list[Found] = [([], [])] * len(queries)
        usual: list[int] = []
        for row, query in enumerate(queries):
            if query.allowed is None:
                usual.append(row)
            else:
                found[row] = listed(best_of_some(self.search.table, vectors[row], columns_of(query), query.k), query)
        if usual:
            wanted = [min(queries[row].k + len(queries[row].left_out), self.recommender.items) for row in usual]
            for row, best in zip(usual, self.search.best(vectors[usual], wanted), strict=True):
                found[row] = listed(best, queries[row])
        return found

    def popular(self, query: Query) -> Found:
        assert self.recommender.popularity is not None
        clicks = self.recommender.popularity.cpu()
        if query.allowed is not None:
            return best_of(clicks.numpy(), query)
        # Many items have the same number of clicks: by the same function as the Recommender's, so in its order.
        best, columns = top(clicks[None], min(query.k + len(query.left_out), len(clicks)))
        return listed((best[0].numpy(), columns[0].numpy()), query)

    def answer(self, query: Query, found: Found) -> RecommendAnswer:
        ids, title = self.recommender.vocabulary.ids, self.recommender.title
        items = [RecommendedItem(ids[number - 1], score, title(number)) for number, score in zip(*found, strict=True)]
        return RecommendAnswer(items, list(query.reading.unknown), popular=not query.reading.numbers)


def columns_of(query: Query) -> Columns:
    return np.array(query.allowed, dtype=np.int64) - 1


def best_of(scores: Floats, query: Query) -> Found:
    """Of the scores [n] of all items."""
    if query.allowed is not None:
        columns = columns_of(query)
        return listed(ordered(scores[columns], columns, query.k), query)
    wanted = min(query.k + len(query.left_out), len(scores))
    return listed(best_of_all(scores, wanted), query)


def listed(best: Best, query: Query) -> Found:
    """As item numbers, without those left out."""
    scores, items = best[0].tolist(), (best[1] + 1).tolist()
    if query.left_out:
        pairs = [pair for pair in zip(items, scores, strict=True) if pair[0] not in query.left_out]
        items, scores = [item for item, _ in pairs], [score for _, score in pairs]
    return items[: query.k], scores[: query.k]
