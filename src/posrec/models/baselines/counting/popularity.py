"""POP, the most clicked items of the training sessions, the same for every session; and S-POP, the
most clicked items of the session itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.config import setting
from posrec.models.base import CLICKS_READ, CountingModel
from posrec.models.baselines.counting.neighbours import (
    LEAST_CLICKS,
    apply_own_factors,
    repeats,
)
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import popularity_order


@dataclass(frozen=True)
class PopConfig:
    max_length: int = setting(1, **CLICKS_READ)


class Pop(CountingModel):
    """An item's score is the number of its training clicks, whatever the session."""

    clicks: Tensor

    def __init__(self, items: int, config: PopConfig) -> None:
        super().__init__(items, config)
        self.register_buffer("clicks", torch.zeros(items))

    def count(self, items: Tensor, offsets: Tensor) -> None:
        items = items[offsets[0] : offsets[-1]].long()
        self.clicks.copy_(torch.bincount(items, minlength=self.items + 1)[1:])

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.clicks.expand(len(batch.lengths), -1)


@dataclass(frozen=True)
class SPopConfig:
    max_length: int = setting(200, **CLICKS_READ)


class SPop(CountingModel):
    """Items are ranked by clicks in the session, then by clicks in training:

        score(i) = clicks on i in the session * (places + 1) + place(i)

    where place(i) is the rank of item i by training clicks, 0 for the least popular, and `places`
    is the highest rank. So one more click in the session always counts more than popularity. Scores
    are whole numbers, exact in float32. If training never repeats the item just clicked, or never
    an earlier one, such items go to the end of the list."""

    place: Tensor  # [n]
    own_factors: Tensor  # [2] 1 or 0, of the item just clicked, and of earlier items

    def __init__(self, items: int, config: SPopConfig) -> None:
        super().__init__(items, config)
        self.register_buffer("place", torch.zeros(items))
        self.register_buffer("own_factors", torch.ones(2))

    def count(self, items: Tensor, offsets: Tensor) -> None:
        items = items[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        self.place.copy_(popularity_order(items, self.items))
        repeated = repeats(items, offsets)
        self.own_factors.copy_(repeated.any(1) | (repeated.shape[1] < LEAST_CLICKS))

    def scores(self, batch: SessionBatch) -> Tensor:
        is_known = self.known_clicks(batch)  # [B, L]
        step = (self.place.max() + 1) * is_known  # [B, L]
        scores = self.place.repeat(len(batch.lengths), 1)  # [B, n]
        scores.scatter_add_(1, (batch.items - 1) * is_known, step)
        apply_own_factors(scores, batch, self.own_factors)
        return scores
