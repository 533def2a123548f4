"""Ranking by torch: the vectors of a model as arrays, and a ranker by all scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posrec.errors import InputError
from posrec.evaluation.metrics import top
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.own_items import OwnItems
from posrec.recommend.rank.best_items import Columns, Floats, OwnItemArrays
from posrec.recommend.rank.encoder import Encoded
from posrec.recommend.rank.ranker import Query, Ranker, Ranking
from posrec.runs.folder import Run


def as_floats(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().float().cpu().contiguous().numpy()
    return array


def as_arrays(own_items: OwnItems) -> OwnItemArrays:
    assert own_items.products is not None
    return OwnItemArrays(
        own_items.items.cpu().numpy(),
        as_floats(own_items.products),
        as_floats(own_items.raised),
        as_floats(own_items.repeat),
        as_floats(own_items.explore),
    )


@torch.inference_mode()
def item_table(run: Run) -> Floats:
    """[n, d] the item vectors of a run's model, which moves to the CPU."""
    if not isinstance(run.model, SessionModel):
        raise InputError(
            f"{run.config['model']} has no item vectors, so there is nothing to index"
        )
    return as_floats(run.model.cpu().eval().item_vectors())


@torch.inference_mode()
def similarity_vectors(run: Run) -> Floats:
    """[n, d] the vectors by whose cosine two items are similar."""
    model: Any = run.model
    return as_floats(model.similarity_vectors())


@torch.inference_mode()
def encode(model: Any, items: Columns, lengths: Columns) -> Encoded:
    batch = SessionBatch(torch.from_numpy(items), torch.from_numpy(lengths))
    vectors, own_items = model.sessions_and_own_items(batch)
    arrays = None if own_items is None else as_arrays(own_items)
    return as_floats(vectors), arrays


class ScoresRanker(Ranker):
    """Ranks by the scores of all items. `scorer` has `scores(batch)`: a model, or an OnnxModel."""

    def __init__(self, scorer: Any, popularity: Floats, device: torch.device) -> None:
        super().__init__(scorer, popularity)
        self.scorer = scorer
        self.device = device

    @torch.inference_mode()
    def rank_known(self, queries: Sequence[Query]) -> list[Ranking]:
        sessions = [query.session.numbers for query in queries]
        batch = SessionBatch.of(sessions, self.max_length, self.stride)
        scores = self.scorer.scores(batch.to(self.device))  # [B, n]
        scores = scores.to(self.device, torch.float32)
        masks = [query.candidates.mask for query in queries]
        if any(mask is not None for mask in masks):
            every = np.ones(self.items, np.bool_)
            of_rows = [every if mask is None else mask for mask in masks]
            # All sessions of a file have the same mask, which is then not copied for each.
            is_same = all(mask is of_rows[0] for mask in of_rows)
            allowed = torch.from_numpy(of_rows[0] if is_same else np.stack(of_rows))
            scores = scores.masked_fill(~allowed.to(self.device), -torch.inf)
        left_out = [
            (row, item) for row, query in enumerate(queries) for item in query.left_out
        ]
        if left_out:
            rows, items = torch.tensor(left_out, device=self.device).T
            scores = scores.index_put((rows, items - 1), scores.new_tensor(-torch.inf))
        most = min(max(query.k for query in queries), self.items)
        best_scores, columns = top(scores, most)
        numbers = (columns + 1).tolist()
        return list(map(allowed_ranking, queries, best_scores.tolist(), numbers))


def allowed_ranking(query: Query, scores: list[float], numbers: list[int]) -> Ranking:
    """The k best items, without those that are left out, whose score is -inf."""
    best = zip(numbers[: query.k], scores, strict=False)
    return [(number, score) for number, score in best if score != -torch.inf]
