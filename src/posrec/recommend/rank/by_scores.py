"""The best items by the scores of all items, computed by torch on a CPU or a GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posrec.evaluation.metrics import top
from posrec.nn.batch import SessionBatch
from posrec.recommend.rank.ranker import Query, Ranking


class ByScores:
    """`scorer` has `scores(batch)`: a model, or an OnnxModel."""

    kind, recall = "all scores", 1.0

    def __init__(self, scorer: Any, items: int, device: torch.device) -> None:
        self.scorer, self.items, self.device = scorer, items, device
        self.max_length: int = scorer.config.max_length
        self.stride: int = scorer.stride
        self.has_own_items: bool = scorer.has_own_items

    @torch.inference_mode()
    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        batch = SessionBatch.of([query.session.numbers for query in queries], self.max_length, self.stride)
        scores = self.scorer.scores(batch.to(self.device)).to(self.device, torch.float32)
        return self.best(scores, queries)

    def best(self, scores: Tensor, queries: Sequence[Query]) -> list[Ranking]:
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
            return torch.from_numpy(first.excluded).to(self.device)
        every = torch.zeros(self.items, dtype=torch.bool)
        masks = [
            every if query.candidates is None else torch.from_numpy(query.candidates.excluded) for query in queries
        ]
        return torch.stack(masks).to(self.device)
