"""Many requests ranked at once, each with its own k and its own items left out; what the server asks of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.data.batch import SessionBatch
from posrec.errors import InputError
from posrec.runs import Run
from posrec.serving.onnx_model import OnnxModel
from posrec.serving.recommender import Reading, Recommender
from posrec.serving.search import Search
from posrec.serving.top import top
from posrec.serving.wire import RecommendAnswer, RecommendedItem


@dataclass(frozen=True)
class Query:
    """A request in item numbers."""

    reading: Reading
    k: int
    left_out: frozenset[int] = frozenset()
    allowed: tuple[int, ...] | None = None  # only these; None where all may be


Found = tuple[list[int], list[float]]  # item numbers and their scores, the best first


class Ranker:
    """Session vectors by ONNX Runtime where `onnx` is given, else by torch; models without vectors score by torch."""

    def __init__(self, run: Run, device: str = "cpu", onnx: Path | None = None) -> None:
        self.recommender = Recommender(run, device)
        self.onnx = OnnxModel(onnx, threads=1) if onnx is not None else None
        self.model: Any = self.onnx or run.model
        self.longest: int = self.recommender.model.config.max_length
        self.search: Search | None = None
        if hasattr(run.model, "session_vectors") and self.recommender.device.type == "cpu":
            with torch.inference_mode():
                self.search = Search(self.recommender.model.item_vectors())

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
        else:
            vectors: Tensor = self.model.session_vectors(batch)  # [B, d]
        found: list[Found] = [([], [])] * len(queries)
        groups: dict[int, list[int]] = {}  # rows by how many items must be found for them
        for row, query in enumerate(queries):
            if query.allowed is not None:
                columns = torch.tensor(query.allowed) - 1
                some = scores[row][columns] if self.search is None else self.search.scores_of(vectors[row], columns)
                found[row] = best_of(some, columns, query)
            else:
                groups.setdefault(self.wanted(query), []).append(row)
        for wanted, rows in groups.items():
            place = torch.tensor(rows)
            if self.search is None:
                best, columns = top(scores[place], wanted)
            else:
                best, columns = self.search.top(vectors[place], wanted)
            for row, values, items in zip(rows, best.tolist(), (columns + 1).tolist(), strict=True):
                found[row] = kept(items, values, queries[row])
        return found

    def wanted(self, query: Query) -> int:
        """How many items to find so that k are left; one of few sizes (24, 32, 64, ...): most are found together."""
        wanted = query.k + len(query.left_out)
        size = 24 if wanted <= 24 else max(32, 1 << (wanted - 1).bit_length())
        return min(size, self.recommender.items)

    def popular(self, query: Query) -> Found:
        """The most clicked items, in the Recommender's order."""
        assert self.recommender.popularity is not None
        clicks = self.recommender.popularity.cpu()
        if query.allowed is not None:
            columns = torch.tensor(query.allowed, dtype=torch.long) - 1
            return best_of(clicks[columns], columns, query)
        best, columns = top(clicks[None], min(query.k + len(query.left_out), len(clicks)))
        return kept((columns[0] + 1).tolist(), best[0].tolist(), query)

    def answer(self, query: Query, found: Found) -> RecommendAnswer:
        ids, rec = self.recommender.vocabulary.ids, self.recommender
        items = [
            RecommendedItem(ids[number - 1], score, rec.title(number)) for number, score in zip(*found, strict=True)
        ]
        return RecommendAnswer(items, list(query.reading.unknown), popular=not query.reading.numbers)


def best_of(scores: Tensor, columns: Tensor, query: Query) -> Found:
    """The k best of a few items, whose scores these are."""
    values, place = scores.topk(min(query.k, len(columns)))
    return (columns[place] + 1).tolist(), values.tolist()


def kept(items: list[int], values: list[float], query: Query) -> Found:
    """The k best without those left out."""
    if query.left_out:
        pairs = [(item, value) for item, value in zip(items, values, strict=True) if item not in query.left_out]
        items, values = [item for item, _ in pairs], [value for _, value in pairs]
    return items[: query.k], values[: query.k]
