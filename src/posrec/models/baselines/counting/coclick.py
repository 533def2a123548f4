"""Co-click counts with an explicit repeat term: a baseline without training, which a trained model
should beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.config import setting
from posrec.models.base import CLICKS_READ
from posrec.models.baselines.counting.neighbours import NeighbourModel, own_items
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, nearest, offsets_of, spread
from posrec.nn.items.coclicks import co_clicks


@dataclass(frozen=True)
class CoClickConfig:
    window: int = setting(
        6, "how far apart two clicks may be", at_least=1, tune=(3, 6, 10)
    )
    before: float = setting(
        0.5,
        "weight of items clicked before, where those clicked after have 1",
        at_least=0,
        tune=(0.25, 0.5, 1.0),
    )
    recency: float = setting(
        1.0,
        "how much an older session counts less; the whole training part is 1",
        at_least=0,
    )
    neighbours: int = setting(300, "how many neighbours each item keeps", at_least=1)
    smoothing: float = setting(
        10.0,
        "lowers the scores of neighbours of rare items",
        at_least=0,
        tune=(1.0, 5.0, 10.0, 20.0),
    )
    decay: float = setting(
        0.5,
        "factor of a click's weight, for each click after it",
        above=0,
        at_most=1,
        tune=(0.3, 0.5, 0.7),
    )
    repeat: float = setting(
        0.15,
        "the score of the session's last item",
        at_least=0,
        tune=(0.05, 0.1, 0.15, 0.3, 0.6),
    )
    repeat_decay: float = setting(
        0.7,
        "factor of an own item's score, for each click after it",
        above=0,
        at_most=1,
        tune=(0.5, 0.7, 0.9),
    )
    max_length: int = setting(50, **CLICKS_READ)


class CoClick(NeighbourModel):
    """With C_ji the weighted counts of `nn/items/coclicks.py`, and C_j the sum of row j:

        p(i | j) = C_ji / (C_j + smoothing)
        score(i) = sum over clicks j of the session of decay^backward(j) * p(i | j)
                 + repeat * repeat_decay^backward(i)         if i was clicked in the session

    `backward` counts from the last click, 0, that of an item i from its latest click. An item is
    not its own neighbour.
    """

    offsets: Tensor  # [items + 2] int64: item j has the entries offsets[j] .. offsets[j + 1] - 1
    neighbour: Tensor  # [E] int32
    chance: Tensor  # [E] p(i | j)

    def __init__(self, items: int, config: CoClickConfig) -> None:
        super().__init__(items, config)
        self.register_buffer("offsets", torch.empty(0, dtype=torch.int64))
        self.register_buffer("neighbour", torch.empty(0, dtype=torch.int32))
        self.register_buffer("chance", torch.empty(0))

    def count_neighbours(self, items: Tensor, offsets: Tensor) -> None:
        config = self.config
        item, other, count = co_clicks(
            items, offsets, self.items, config.window, config.before, config.recency
        )
        total = count.new_zeros(self.items + 1).index_add_(0, item, count)
        chance = (count / (total[item] + config.smoothing)).float()
        best = nearest(item, chance, config.neighbours)
        self.offsets = offsets_of(item[best], self.items + 1)
        self.neighbour = other[best].int()
        self.chance = chance[best]

    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        config = self.config
        row, column = self.known_clicks(batch).nonzero(as_tuple=True)  # [C]
        backward = batch.lengths[row] - 1 - column
        click, entry = spread(self.offsets, batch.items[row, column])  # [E]
        near = config.decay ** backward[click] * self.chance[entry]
        near_places = row[click] * self.items + self.neighbour[entry] - 1
        own_row, own_column, own_backward = own_items(batch, self.items)
        repeated = config.repeat * config.repeat_decay**own_backward
        own_places = own_row * self.items + own_column
        places = torch.cat([near_places, own_places])
        add_up(scores, places, torch.cat([near, repeated]).to(scores.dtype))
