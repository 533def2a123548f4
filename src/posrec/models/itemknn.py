"""Item-KNN: the items most often in the same sessions as the last one (Davidson et al., The YouTube Video
Recommendation System, 2010; in this form a baseline of Hidasi et al., 2016).

    similarity(i, j) = S_ij / ((S_i + regularization)^alpha * (S_j + regularization)^(1 - alpha))

S_i counts the training sessions with item i, S_ij those with both. With alpha = 0.5 and no regularisation it is the
cosine of the items' vectors over sessions; regularisation keeps two rare items that met once from looking alike. An
item is no neighbour of its own, and keeps the `neighbours` most similar. Scored from the latest click on a known item;
with `all_items` the similarities to all clicks of the session are summed. Items that are no neighbours follow by
popularity.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.models.base import CountingModel
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, offsets_of, rest_by_popularity, spread
from posrec.nn.session_index import SessionIndex, nearest

PAIRS_AT_ONCE = 1 << 22  # while counting; bounds the memory


@dataclass(frozen=True)
class ItemKNNConfig:
    neighbours: int = 100
    regularization: float = 20.0
    alpha: float = 0.75
    all_items: bool = False
    max_length: int = 50


class ItemKNN(CountingModel):
    """The neighbours of item i are `similar[offsets[i] : offsets[i + 1]]`; there are none before `count`."""

    offsets: Tensor  # [items + 2] int64
    similar: Tensor  # [E] int32
    similarity: Tensor  # [E]
    rest: Tensor  # [n] below 0, by popularity

    def __init__(self, items: int, config: ItemKNNConfig) -> None:
        super().__init__(items, config)
        if config.neighbours < 1:
            raise ValueError(f"neighbours={config.neighbours} must be at least 1")
        if config.regularization < 0 or not 0 <= config.alpha <= 1:
            raise ValueError(
                f"regularization={config.regularization} must not be negative, alpha={config.alpha} from 0 to 1"
            )
        self.register_buffer("offsets", torch.empty(0, dtype=torch.int64))
        self.register_buffer("similar", torch.empty(0, dtype=torch.int32))
        self.register_buffer("similarity", torch.empty(0))
        self.register_buffer("rest", torch.zeros(items))

    def count(self, items: Tensor, offsets: Tensor) -> None:
        index = SessionIndex(self.items)
        index.count(items, offsets)
        sizes = index.session_offsets.diff()  # [S]
        met = torch.cat([sizes.new_zeros(1), sizes[index.item_sessions].cumsum(0)])  # items met, up to each entry
        met = met[index.item_offsets]  # [items + 2] up to each item
        blocks, start = [], 1
        while start <= self.items:
            end = int(torch.searchsorted(met, met[start] + PAIRS_AT_ONCE, right=True)) - 1
            end = min(max(end, start + 1), self.items + 1)
            blocks.append(self.neighbours_of(index, torch.arange(start, end, device=met.device)))
            start = end
        item, similar, similarity = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        self.offsets, self.similar, self.similarity = offsets_of(item, self.items + 1), similar.int(), similarity
        self.rest.copy_(rest_by_popularity(items[offsets[0] : offsets[-1]], self.items))

    def neighbours_of(self, index: SessionIndex, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """items [I], in order -> item, neighbour and similarity, each [E], by item and the most similar first."""
        item, visit = spread(index.item_offsets, items)
        session, place = spread(index.session_offsets, index.item_sessions[visit].long())
        pair = items[item[session]] * (self.items + 1) + index.session_items[place]
        pair, together = torch.unique(pair, return_counts=True)
        one, other = pair // (self.items + 1), pair % (self.items + 1)
        support = index.item_offsets.diff() + self.config.regularization
        alike = (together / (support[one] ** self.config.alpha * support[other] ** (1 - self.config.alpha))).float()
        two = one != other
        one, other, alike = one[two], other[two], alike[two]
        best = nearest(one, alike, self.config.neighbours)
        return one[best], other[best], alike[best]

    def scores(self, batch: SessionBatch) -> Tensor:
        known = batch.mask & (batch.items >= 1) & (batch.items <= self.items)  # [B, L]
        if not self.config.all_items:
            place = torch.arange(1, known.shape[1] + 1, device=known.device)
            known = known & (place == (known * place).amax(1, keepdim=True))
        row, column = known.nonzero(as_tuple=True)
        click, place = spread(self.offsets, batch.items[row, column])
        scores = self.rest.repeat(len(batch.lengths), 1)  # [B, n]
        add_up(scores, row[click] * self.items + self.similar[place] - 1, self.similarity[place])
        return scores
