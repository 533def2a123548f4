"""VSKNN: vector multiplication session kNN (Ludewig & Jannach, Evaluation of Session-based
Recommendation Algorithms, 2018).

    similarity(s, n) = sum over items i in both of  weight(position of i in s)
    score(i) = sum over the k most similar n that hold i of  similarity(s, n) * decay(s, n) * (1 + idf * log(S / S_i))

The later an item of the current session s, the higher its weight. Neighbours n come from the
`sample_size` newest training sessions that share an item with s. `decay` falls with the distance of
the latest shared item from the end of s. S counts training sessions, S_i those with item i."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.config import setting
from posrec.models.baselines.counting.neighbours import NeighbourModel
from posrec.models.baselines.counting.session_index import SessionIndex
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, nearest, spread

# The weight of a click by its distance from the session's end (0 for the last click) and the
# session's length.
WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "same": lambda backward, length: torch.ones_like(backward / length),
    "linear": lambda backward, length: (1 - 0.1 * backward).clamp(min=0),
    "div": lambda backward, length: (length - backward) / length,
    "quadratic": lambda backward, length: ((length - backward) / length) ** 2,
    "log": lambda backward, length: 1 / torch.log10(backward + 1.7),
    "harmonic": lambda backward, length: 1 / (backward + 1),
}


@dataclass(frozen=True)
class VSKNNConfig:
    k: int = setting(
        300, "the number of neighbours", at_least=1, tune=(100, 300, 500, 1000)
    )
    sample_size: int = setting(
        2500,
        "how many of the newest sessions are searched for neighbours",
        at_least=1,
        tune=(1000, 2500, 5000),
    )
    weighting: str = setting(
        "log",
        "weight of the session's clicks by their position ([formulas](models.md#vsknn))",
        choices=tuple(WEIGHTS),
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
    max_length: int = setting(
        50, "how many of a session's latest clicks are read", at_least=1
    )


class VSKNN(NeighbourModel):
    """Nearest training sessions, where late clicks and rare items have higher weights."""

    lift: Tensor  # [n] 1 + idf * log(S / S_i)

    def __init__(self, items: int, config: VSKNNConfig) -> None:
        super().__init__(items, config)
        self.index = SessionIndex(items)
        self.register_buffer("lift", torch.ones(items))

    def count_neighbours(self, items: Tensor, offsets: Tensor) -> None:
        self.index.count(items, offsets)
        with_item = self.index.item_offsets.diff()[1:].clamp(min=1)  # [n] S_i
        self.lift.copy_(
            1 + self.config.idf * torch.log(self.index.sessions / with_item)
        )

    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        """Write the scores of the items in neighbours into `scores [B, n]`."""
        length = batch.lengths[:, None]
        backward = (
            length - 1 - torch.arange(batch.items.shape[1], device=length.device)
        ).clamp(min=0)  # [B, L]
        weights = WEIGHTS[self.config.weighting](backward, length)
        found = self.index.candidates(
            batch.items, batch.lengths, weights, self.config.sample_size
        )
        found = found.only(nearest(found.row, found.overlap, self.config.k))
        weight = found.overlap * WEIGHTS[self.config.decay](
            found.backward, batch.lengths[found.row]
        )  # [G]
        neighbour, place = spread(self.index.session_offsets, found.session)  # [E]
        column = self.index.session_items[place].long() - 1
        value = weight[neighbour] * self.lift[column]
        add_up(scores, found.row[neighbour] * self.items + column, value)
