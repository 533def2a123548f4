"""The best items by the scores of all items, computed by torch on a CPU or a GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posrec.nn.batch import SessionBatch
from posrec.recommend.ranker import Query, Ranking

TOP_BLOCK = 128  # columns whose highest score `top` takes first


class ByScores:
    """`scorer` has `scores(batch)`: a model, or an OnnxModel."""

    kind, recall = "all scores", 1.0

    def __init__(self, scorer: Any, items: int, device: torch.device) -> None:
        self.scorer, self.items, self.device = scorer, items, device
        self.max_length: int = scorer.config.max_length
        self.has_own_items: bool = scorer.has_own_items

    @torch.inference_mode()
    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        batch = SessionBatch.of([query.session.numbers for query in queries], self.max_length)
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


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` of scores [B, n]: values and columns, [B, k] each, the best first.

    On a CPU, torch's topk goes through every row, which takes longer than computing the row did. The k best are in the
    k blocks of columns with the highest maxima, so those blocks are found first, and topk goes through them alone.
    """
    block = TOP_BLOCK
    blocks = scores.shape[1] // block
    if scores.device.type != "cpu" or blocks < 2 * k:
        values, columns = scores.topk(k)
        return values, columns
    whole = blocks * block
    best = scores[:, :whole].view(-1, blocks, block).amax(2).topk(k, sorted=False).indices  # [B, k] blocks
    inside = (best[..., None] * block + torch.arange(block)).flatten(1)  # [B, k * block] columns
    rest = torch.arange(whole, scores.shape[1]).expand(scores.shape[0], -1)
    columns = torch.cat([inside, rest], dim=1)
    values, place = scores.gather(1, columns).topk(k)
    return values, columns.gather(1, place)
