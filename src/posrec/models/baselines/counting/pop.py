"""POP: the most clicked items of the training sessions, the same for every session."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.config import setting
from posrec.models.base import CountingModel
from posrec.nn.batch import SessionBatch


@dataclass(frozen=True)
class PopConfig:
    max_length: int = setting(1, "how many of a session's latest clicks are read", at_least=1)


class Pop(CountingModel):
    """Popularity: an item's score is the number of its training clicks, whatever the session."""

    clicks: Tensor

    def __init__(self, items: int, config: PopConfig) -> None:
        super().__init__(items, config)
        self.register_buffer("clicks", torch.zeros(items))

    def count(self, items: Tensor, offsets: Tensor) -> None:
        counted = items[offsets[0] : offsets[-1]].long()  # `items` may hold the clicks of the whole dataset
        self.clicks.copy_(torch.bincount(counted, minlength=self.items + 1)[1:])

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.clicks.expand(len(batch.lengths), -1)
