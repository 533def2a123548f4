"""Item-KNN: the items most often in the same sessions as the last one (Davidson et al., The YouTube
Video Recommendation System, 2010; in this form a baseline of Hidasi et al., 2016)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from posrec.config import setting
from posrec.models.base import CLICKS_READ
from posrec.models.baselines.counting.neighbours import NeighbourModel
from posrec.models.baselines.counting.session_index import SessionIndex
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, nearest, offsets_of, spread

PAIRS_AT_ONCE = 1 << 22  # while counting; bounds the memory


@dataclass(frozen=True)
class ItemKNNConfig:
    neighbours: int = setting(
        100, "how many neighbours each item keeps", at_least=1, tune=(50, 100, 200, 500)
    )
    regularization: float = setting(
        20.0,
        "added to every count; lowers the similarity of rare items",
        at_least=0,
        tune=(0.0, 10.0, 20.0, 50.0),
    )
    alpha: float = setting(
        0.75,
        "the exponent of the clicked item's count; 0.5 is the cosine, "
        "above 0.5 favours popular neighbours",
        between=(0, 1),
        tune=(0.25, 0.5, 0.75),
    )
    itself: bool = setting(
        False,
        "an item is its own nearest neighbour: clicked items are recommended again",
        tune=(False, True),
    )
    all_items: bool = setting(
        False,
        "sum over all clicks of the session, not the last alone",
        tune=(False, True),
    )
    max_length: int = setting(50, **CLICKS_READ)


class ItemKNN(NeighbourModel):
    """With S_i the number of training sessions with item i, S_ij of those with both, and r the
    setting `regularization`:

        similarity(i, j) = S_ij / ((S_i + r)^alpha * (S_j + r)^(1 - alpha))

    An item keeps its `neighbours` most similar items. A score is the similarity to the latest click
    on a known item.
    """

    offsets: Tensor  # [items + 2] int64: item i has the entries offsets[i] .. offsets[i + 1] - 1
    similar: Tensor  # [E] int32
    similarity: Tensor  # [E]

    def __init__(self, items: int, config: ItemKNNConfig) -> None:
        super().__init__(items, config)
        self.register_buffer("offsets", torch.empty(0, dtype=torch.int64))
        self.register_buffer("similar", torch.empty(0, dtype=torch.int32))
        self.register_buffer("similarity", torch.empty(0))

    def count_neighbours(self, items: Tensor, offsets: Tensor) -> None:
        index = SessionIndex(self.items)
        index.count(items, offsets)
        sizes = index.session_offsets.diff()  # [S]
        pairs = sizes[index.item_sessions].cumsum(0)  # [E] pairs up to each entry
        pairs = functional.pad(pairs, (1, 0))[index.item_offsets]  # before each item
        blocks = []
        start = 1
        while start <= self.items:
            most = pairs[start] + PAIRS_AT_ONCE
            end = int(torch.searchsorted(pairs, most, right=True)) - 1
            end = min(max(end, start + 1), self.items + 1)
            block = torch.arange(start, end, device=pairs.device)
            blocks.append(self.neighbours_of(index, block))
            start = end
        columns = zip(*blocks, strict=True)
        item, similar, similarity = (torch.cat(column) for column in columns)
        self.offsets = offsets_of(item, self.items + 1)
        self.similar = similar.int()
        self.similarity = similarity

    def neighbours_of(
        self, index: SessionIndex, items: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """items [I], in order -> item, neighbour and similarity, [E] each, by item and then the
        most similar first."""
        config = self.config
        item, visit = spread(index.item_offsets, items)
        sessions = index.item_sessions[visit].long()
        session, entry = spread(index.session_offsets, sessions)
        pair = items[item[session]] * (self.items + 1) + index.session_items[entry]
        pair, together = torch.unique(pair, return_counts=True)
        item = pair // (self.items + 1)
        other = pair % (self.items + 1)
        support = index.item_offsets.diff() + config.regularization
        norm = support[item] ** config.alpha * support[other] ** (1 - config.alpha)
        similarity = (together / norm).float()
        if not config.itself:
            is_other = item != other
            item = item[is_other]
            other = other[is_other]
            similarity = similarity[is_other]
        best = nearest(item, similarity, config.neighbours)
        return item[best], other[best], similarity[best]

    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        is_read = self.known_clicks(batch)
        if not self.config.all_items:
            from_here = is_read.flip(1).cumsum(1).flip(1)
            is_read = is_read & (from_here == 1)  # the last one
        row, column = is_read.nonzero(as_tuple=True)
        click, entry = spread(self.offsets, batch.items[row, column])
        places = row[click] * self.items + self.similar[entry] - 1
        add_up(scores, places, self.similarity[entry])
