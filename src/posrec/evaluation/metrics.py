"""Metrics as pure functions of ranks. A rank is 1 for the best; ties count against the target.

>>> ranks = torch.tensor([1, 4, 30])
>>> gains(ranks, "mrr", 5).tolist(), round(rank_metrics(ranks)["recall@5"], 4)
([1.0, 0.25, 0.0], 0.6667)
"""

from collections.abc import Callable

import torch
from torch import Tensor

TOP_BLOCK = 128  # columns whose highest score `top` takes first
CUTOFFS = (5, 10, 20)
# What a sample adds to a metric's mean by the rank of its target, up to K; 0 past K.
GAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "recall": torch.ones_like,  # R@K: the share of targets among the first K
    "mrr": torch.reciprocal,  # M@K
    "ndcg": lambda rank: 1 / torch.log2(rank + 1),  # N@K with one relevant item
}
# What `ranks_of` computes, as metrics.json names it.
RANKING = "all items, ties against the target"


def ranks_of(scores: Tensor, targets: Tensor) -> Tensor:
    """scores [B, n] (column i is item i + 1), targets [B] -> ranks [B].

    The rank is one more than the number of other items that score as much or more. A target outside
    1..n, or whose score is not finite, ranks past all items and past every K.
    """
    items = scores.shape[1]
    reachable = (targets >= 1) & (targets <= items)
    target_score = scores.gather(1, (targets - 1).clamp(0, items - 1)[:, None])
    # The smaller ones are counted, not the greater or equal ones: a score that is not a number
    # counts against the target. Sums of int32 take a third less time than sums of int64.
    smaller = (scores < target_score).sum(1, dtype=torch.int32)
    has_rank = reachable & target_score[:, 0].isfinite()
    return torch.where(has_rank, items - smaller.long(), max(items, *CUTOFFS) + 1)


def gains(ranks: Tensor, metric: str, k: int) -> Tensor:
    """What each sample adds to a metric's mean, [N]."""
    return torch.where(ranks <= k, GAINS[metric](ranks.double()), 0.0)


def coverage(top: Tensor, items: int) -> Tensor:
    """The share of all items that appear in any list; top [N, K] holds item numbers."""
    seen = torch.zeros(items + 1, dtype=torch.bool, device=top.device)
    seen[top.flatten()] = True
    return seen[1:].double().mean()


def mean_popularity(top: Tensor, clicks: Tensor) -> Tensor:
    """The mean popularity of recommended items, the most clicked being 1; clicks [items + 1].

    A 0 in `top` stands for no item, where a list is shorter than others.
    """
    return (clicks[top[top > 0]].double() / clicks.max()).mean()


def rank_metrics(ranks: Tensor) -> dict[str, float]:
    return {
        f"{name}@{k}": float(gains(ranks, name, k).mean())
        for name in GAINS
        for k in CUTOFFS
    }


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` of scores [B, n]: values and columns, [B, k] each, the best first.

    torch's topk goes through every row several times. The k best are in the k blocks of columns
    with the highest maxima, so those are found first, and topk goes through them alone.
    """
    block = TOP_BLOCK
    blocks = scores.shape[1] // block
    if blocks < 2 * k:
        values, columns = scores.topk(k)
        return values, columns
    batch, n = scores.shape
    whole = blocks * block
    maxima = scores[:, :whole].view(batch, blocks, block).amax(2)  # [B, blocks]
    best = maxima.topk(k, sorted=False).indices  # [B, k]
    within = torch.arange(block, device=scores.device)
    inside = (best[..., None] * block + within).flatten(1)  # [B, k * block] columns
    rest = torch.arange(whole, n, device=scores.device).expand(batch, -1)
    columns = torch.cat([inside, rest], dim=1)
    values, position = scores.gather(1, columns).topk(k)
    return values, columns.gather(1, position)
