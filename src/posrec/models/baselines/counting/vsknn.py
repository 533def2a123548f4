"""VSKNN: vector multiplication session kNN (Ludewig & Jannach, Evaluation of Session-based
Recommendation Algorithms, 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.config import setting
from posrec.models.base import CLICKS_READ
from posrec.models.baselines.counting.neighbours import NeighbourModel
from posrec.models.baselines.counting.session_index import (
    NEIGHBOURS,
    SAMPLE_SIZE,
    SessionIndex,
    Weigh,
)
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, nearest, spread

WEIGHTS: dict[str, Weigh] = {
    "same": lambda backward, length: torch.ones_like(backward / length),
    "linear": lambda backward, length: (1 - 0.1 * backward).clamp(min=0),
    "div": lambda backward, length: (length - backward) / length,
    "quadratic": lambda backward, length: ((length - backward) / length) ** 2,
    "log": lambda backward, length: 1 / torch.log10(backward + 1.7),
    "harmonic": lambda backward, length: 1 / (backward + 1),
}


@dataclass(frozen=True)
class VSKNNConfig:
    k: int = setting(300, **NEIGHBOURS)
    sample_size: int = setting(2500, **SAMPLE_SIZE)
    weighting: str = setting(
        "log",
        "weight of the session's clicks by their position ([formulas](models.md#vsknn))",
        choices=tuple(WEIGHTS),
        tune=("log", "linear", "quadratic"),
    )
    decay: str = setting(
        "harmonic",
        "weight of a neighbour by the position of the latest shared item",
        choices=tuple(WEIGHTS),
    )
    idf: float = setting(
        1.0,
        "how much the scores of rare items are raised; 0: not at all",
        at_least=0,
        tune=(0.0, 1.0, 5.0),
    )
    max_length: int = setting(50, **CLICKS_READ)


class VSKNN(NeighbourModel):
    """Late clicks and rare items weigh more:

        similarity(s, n) = sum over items i in both of weight(i, s)
        score(i) = sum over the k most similar n that hold i of
                   similarity(s, n) * decay(s, n) * (1 + idf * log(S / S_i))

    Neighbours n come from the `sample_size` newest training sessions that share an item with s. The
    weight falls with the clicks of s after i, `decay` with those after the latest shared item. S
    counts training sessions, S_i those with item i.
    """

    lift: Tensor  # [n] 1 + idf * log(S / S_i)

    def __init__(self, items: int, config: VSKNNConfig) -> None:
        super().__init__(items, config)
        self.index = SessionIndex(items)
        self.register_buffer("lift", torch.ones(items))

    def count_neighbours(self, items: Tensor, offsets: Tensor) -> None:
        self.index.count(items, offsets)
        with_item = self.index.item_offsets.diff()[1:].clamp(min=1)  # [n] S_i
        rarity = torch.log(self.index.sessions / with_item)
        self.lift.copy_(1 + self.config.idf * rarity)

    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        weigh = WEIGHTS[self.config.weighting]
        pairs = self.index.candidates(batch, weigh, self.config.sample_size)
        pairs = pairs[nearest(pairs.row, pairs.overlap, self.config.k)]
        decay = WEIGHTS[self.config.decay](pairs.backward, batch.lengths[pairs.row])
        weight = pairs.overlap * decay  # [G]
        neighbour, entry = spread(self.index.session_offsets, pairs.session)  # [E]
        column = self.index.session_items[entry].long() - 1
        value = weight[neighbour] * self.lift[column]
        add_up(scores, pairs.row[neighbour] * self.items + column, value)
