"""NeighbourModel: the base class of models that score the items near a session's own items, from
counts of training sessions.

Items without a score follow by popularity, with scores below 0. Such models put a session's own
items first, and some logs rarely repeat items, so the scores of own items are lowered to how often
the log repeats them (`NeighbourModel.count`)."""

import torch
from torch import Tensor

from posrec.models.base import CountingModel
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import rest_by_popularity

SESSIONS_AT_A_TIME = 128  # bounds the memory of candidates, and keeps them in the cache
# A repeat is easier to predict than any other click, so own items rightly come first more often
# than they are clicked. With this tolerance every factor is 1 on Diginetica and Yoochoose.
TOLERANCE = 7.0
LEAST_CLICKS = 1000  # fewer do not tell how often items are repeated
SAMPLE = 1000  # begun sessions from which m is measured
SCORES_IN_MEMORY = 1 << 23  # while m is measured
END = -2.0  # below the scores of all other items


class NeighbourModel(CountingModel):
    """A subclass implements `count_neighbours`, with the arguments of `count`, and `add_scores`."""

    rest: Tensor  # [n] scores below 0 for items without another score, in the order of popularity
    own_factors: Tensor  # [2] of the item just clicked, and of earlier items

    def __init__(self, items: int, config: object) -> None:
        super().__init__(items, config)
        self.register_buffer("rest", torch.zeros(items))
        self.register_buffer("own_factors", torch.ones(2))

    def count_neighbours(self, items: Tensor, offsets: Tensor) -> None:
        raise NotImplementedError

    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        """Write the scores of neighbours into `scores [B, n]`."""
        raise NotImplementedError

    def count(self, items: Tensor, offsets: Tensor) -> None:
        """The factors of own items are min(1, TOLERANCE * p / m)^2, one for the item just clicked
        and one for the earlier ones. p is the share of training clicks that repeat such an item; m
        is the share that such items have of the scores of all own items and the best other item, a
        mean over sessions as they begin in training. The square ranks better on the demo shop."""
        items = items[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        self.count_neighbours(items, offsets)
        self.rest.copy_(rest_by_popularity(items, self.items))
        self.own_factors.fill_(1)
        repeated = repeats(items, offsets)
        if repeated.shape[1] >= LEAST_CLICKS:
            shares = self.own_shares(items, offsets)
            # 0 / 0 is 0: an item that is never repeated goes to the end, whatever its score.
            ratio = (repeated.float().mean(1) / shares).nan_to_num(0, posinf=1)
            self.own_factors.copy_((TOLERANCE * ratio).clamp(max=1) ** 2)

    def own_shares(self, items: Tensor, offsets: Tensor) -> Tensor:
        """[2] m of the item just clicked, and of earlier items."""
        ends = later_clicks(offsets)
        if len(ends) > SAMPLE:
            generator = torch.Generator().manual_seed(0)
            drawn = torch.randint(len(ends), (SAMPLE,), generator=generator)
            ends = ends[drawn.to(ends.device)]
        begins = offsets[torch.searchsorted(offsets, ends, right=True) - 1]
        begins = begins.maximum(ends - self.config.max_length)
        bounds = zip(begins, ends, strict=True)
        sessions = [items[begin:end].tolist() for begin, end in bounds]
        size = max(1, min(SESSIONS_AT_A_TIME, SCORES_IN_MEMORY // self.items))
        shares = torch.zeros(2)
        for start in range(0, len(sessions), size):
            batch = SessionBatch.of(sessions[start : start + size]).to(items.device)
            scores = self.scores(batch).clamp(min=0)
            row, column, backward = own_items(batch, self.items)
            is_earlier = (backward > 0).long()
            own_scores = torch.zeros(len(scores), 2).to(scores)
            own_scores.index_put_(
                (row, is_earlier), scores[row, column], accumulate=True
            )
            scores[row, column] = 0
            total = own_scores.sum(1) + scores.amax(1)
            total = total.clamp(min=torch.finfo(total.dtype).tiny)
            shares += (own_scores / total[:, None]).sum(0).cpu()
        return (shares / len(sessions)).to(items.device)

    def scores(self, batch: SessionBatch) -> Tensor:
        scores = self.rest.repeat(len(batch.lengths), 1)  # [B, n]
        for start in range(0, len(scores), SESSIONS_AT_A_TIME):
            end = start + SESSIONS_AT_A_TIME
            chunk = batch.rows(start, end)
            self.add_scores(chunk, scores[start:end])
            apply_own_factors(scores[start:end], chunk, self.own_factors)
        return scores


def later_clicks(offsets: Tensor) -> Tensor:
    """The indices of all clicks but those that begin a session; `offsets` begins with 0."""
    later = torch.ones(int(offsets[-1]) + 1, dtype=torch.bool, device=offsets.device)
    later[offsets] = False
    return later.nonzero()[:, 0]


def repeats(items: Tensor, offsets: Tensor) -> Tensor:
    """[2, N] whether each of the `later_clicks` repeats the item just clicked, and an earlier one.

    >>> repeats(torch.tensor([1, 1, 2, 1, 3, 3]), torch.tensor([0, 4, 6])).int().tolist()
    [[1, 0, 0, 1], [0, 0, 1, 0]]
    """
    session = torch.repeat_interleave(offsets.diff())
    pair, order = (session * (items.max() + 1) + items).sort(stable=True)
    is_repeat = torch.zeros_like(pair, dtype=torch.bool)
    is_repeat[order[1:]] = pair[1:] == pair[:-1]
    later = later_clicks(offsets)
    at_once = items[later] == items[later - 1]
    return torch.stack([at_once, is_repeat[later] & ~at_once])


def own_items(batch: SessionBatch, items: int) -> tuple[Tensor, Tensor, Tensor]:
    """The items of each session, of 1..items, once each: their rows and columns in the scores
    [B, n], and the number of clicks after the latest click on the item."""
    inside = batch.mask
    same = batch.items[:, :, None] == batch.items[:, None, :]  # [B, L, L]
    again = (same & inside[:, None, :]).triu(1).any(2)
    is_known = (batch.items >= 1) & (batch.items <= items)
    row, click = (inside & ~again & is_known).nonzero(as_tuple=True)
    return row, batch.items[row, click] - 1, batch.lengths[row] - 1 - click


def apply_own_factors(scores: Tensor, batch: SessionBatch, factors: Tensor) -> None:
    """Multiply the scores [B, n] above 0 of the sessions' own items by `factors [2]`, in place."""
    if bool((factors == 1).all()):
        return
    row, column, backward = own_items(batch, scores.shape[1])
    factor = factors[(backward > 0).long()]
    score = scores[row, column]
    lowered = torch.where(score > 0, factor * score, score)
    scores[row, column] = torch.where(factor == 0, END, lowered)
