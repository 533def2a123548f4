"""Ranking where each process holds some of the items: it counts those that score less than the target.

Every process reads a part of the samples and scores its own items for all of them. The target's score comes from the
process that holds it, the counts of all processes add up to the rank, and the best items are the best of each process's
best. Every process ends with the ranks of all samples.
"""

import torch
from torch import Tensor
from torch.nn import functional

from posrec.data.dataset import SessionDataset, collate
from posrec.evaluation.evaluate import Ranker
from posrec.evaluation.metrics import ranks_of
from posrec.models.base import SessionModel
from posrec.nn.items.own_items import OwnItems
from posrec.training.distributed.rows import ShardedRows


def sharded_ranker(model: SessionModel, rows: ShardedRows) -> Ranker:
    def rank(samples: SessionDataset, ids: Tensor, max_length: int, k: int) -> tuple[Tensor, Tensor]:
        scores = scores_of_items_here(model, rows, samples, ids, max_length)
        _, target = samples.locate(ids)
        targets = samples.items[target].long()
        ranks = ranks_of(scores, targets, rows.start, rows.items, rows.world.summed)
        return ranks, best(scores, rows, k)

    return rank


def scores_of_items_here(
    model: SessionModel, rows: ShardedRows, samples: SessionDataset, ids: Tensor, max_length: int
) -> Tensor:
    """The scores of the items that this process holds, for the samples `ids [B]`: [B, items here]."""
    world = rows.world
    size = -(-len(ids) // world.size)
    filled = torch.cat([ids, ids[:1].expand(size * world.size - len(ids))])  # all parts must be of one size
    longest = min(max_length, int(samples.clicks_before(ids).max()))  # the same in all processes
    batch = collate(samples, filled[world.rank * size : (world.rank + 1) * size], longest, model.stride)
    sessions, table, own = model.encode(batch)
    products = world.gathered(sessions)[: len(ids)] @ table[: rows.items_here].T
    if own is None:
        return products
    items, *rest = (world.gathered(part)[: len(ids)] for part in (own.items, own.raised, own.repeat, own.explore))
    here = items - rows.start  # items of other processes become slots without an item
    own_here = OwnItems(torch.where((here >= 1) & (here <= rows.items_here), here, 0), None, *rest)
    return own_here.log_chances_of_all(products, lambda values: world.gathered(values.logsumexp(1)[None]).logsumexp(0))


def best(scores: Tensor, rows: ShardedRows, k: int) -> Tensor:
    """The numbers of the `k` items with the highest scores of all processes, [B, k]."""
    scores = functional.pad(scores, (0, max(0, k - scores.shape[1])), value=-torch.inf)  # it may hold fewer items
    values, columns = scores.topk(k)
    values, items = (
        rows.world.gathered(part[None]).transpose(0, 1).flatten(1)  # [B, processes k]
        for part in (values, columns + rows.start + 1)
    )
    return items.gather(1, values.topk(k).indices)
