"""POP: the most clicked items of the training sessions, for everyone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.models.base import CountingModel
from posrec.nn.batch import SessionBatch


@dataclass(frozen=True)
class PopConfig:
    max_length: int = 1


class Pop(CountingModel):
    """Scores are counts of training clicks; the session does not matter."""

    clicks: Tensor

    def __init__(self, items: int, config: PopConfig) -> None:
        super().__init__(items, config)
        self.register_buffer("clicks", torch.zeros(items))

    def count(self, items: Tensor, offsets: Tensor) -> None:
        counted = items[offsets[0] : offsets[-1]].long()  # a part of a dataset shares the clicks of the whole
        self.clicks.copy_(torch.bincount(counted, minlength=self.items + 1)[1:])

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.clicks.expand(len(batch.lengths), -1)
