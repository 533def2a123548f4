"""Steps of several processes together: each computes a part of every batch, and holds a part of the item table.

The network is the same in all processes: its gradients are added up, in one buffer. The gradients of an item table's
rows are complete where the rows are. A batch, its order and the weights of its samples are those of a single process;
only dropout differs.

The softmax over all items is a vocabulary-parallel cross entropy. A process gathers the session vectors of all
processes, scores its own items for them and sums exp(score) over these items:

    loss_b = log sum over processes r of exp(log sum_{i in r} exp(s_b x_i)) - s_b x_target
"""

from typing import Any

import torch
from torch import Tensor

from posrec.models.base import SessionModel
from posrec.nn.items.item_table import TableRows
from posrec.nn.items.own_items import OwnItems
from posrec.training.distributed.rows import ShardedRows, tensors_by_rows
from posrec.training.distributed.world import World
from posrec.training.losses import choose_loss, over_all_items
from posrec.training.settings import Settings
from posrec.training.softmax import CHUNK, Loss, log_sum_and_target


def add_up_gradients(model: SessionModel, world: World) -> None:
    """Add up the gradients of the network's weights over all processes."""
    if world.is_alone:
        return
    by_rows = tensors_by_rows(model)
    gradients = [one.grad for name, one in model.named_parameters() if name not in by_rows and one.grad is not None]
    if not gradients:
        return
    total = world.summed(torch.cat([gradient.flatten() for gradient in gradients]))
    parts = torch.split(total, [gradient.numel() for gradient in gradients])
    for gradient, summed in zip(gradients, parts, strict=True):
        gradient.copy_(summed.view_as(gradient))


class Gathered(torch.autograd.Function):
    """`World.gathered`; the gradient of a process's part is the sum of those that all processes have for it."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, world: World) -> Tensor:
        ctx.world = world
        return world.gathered(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.world.sums_of_parts(gradients[0]), None


def sharded_softmax(rows: ShardedRows, items: int, chunk: int = CHUNK) -> Loss:
    """The losses [b] of this process's samples, by a softmax over items 1..items; `chunk` items are scored at a time,
    and again in the backward pass."""
    world, count = rows.world, max(0, min(items, rows.end) - rows.start)

    def gathered(own: Tensor) -> Tensor:
        whole: Tensor = Gathered.apply(own, world)  # type: ignore[no-untyped-call]
        return whole

    def loss(sessions: Tensor, table: Tensor, targets: Tensor, own: OwnItems | None = None) -> Tensor:
        if len(table) != len(rows):
            raise ValueError(f"the model returned {len(table)} item vectors, and this process holds {len(rows)} rows")
        raised = None
        if own is not None:
            raised = world.gathered(own.columns) - rows.start, gathered(own.amounts.float())
        targets = world.gathered(targets) - 1 - rows.start  # of all B samples
        here = log_sum_and_target(gathered(sessions), table, targets, count, chunk, raised)
        log_sums, of_targets = gathered(here[None]).chunk(world.size, 2)[world.rank].unbind(1)  # [processes, b] each
        return log_sums.logsumexp(0) - of_targets.sum(0)

    return loss


def choose_loss_of(rows: TableRows | None, settings: Settings, items: int, clicks: Tensor) -> Loss:
    """`losses.choose_loss` for an item table of which this process holds these rows."""
    if isinstance(rows, ShardedRows) and over_all_items(settings.loss, items):
        return sharded_softmax(rows, items)
    return choose_loss(settings, items, clicks, rows)
