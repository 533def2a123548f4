"""The softmax over all items where each process holds some of them: a vocabulary-parallel cross entropy.

Every process has the session vectors of its own samples. It gathers those of all samples, scores its own items for
them, and sums exp(score) over these items; the sums of all processes give the normaliser, and the process that holds a
target gives its score:

    loss_b = log sum over processes r of exp(log sum_{i in r} exp(s_b x_i)) - s_b x_target

In the backward pass the gradient of a process's items is complete without communication, since it has all session
vectors. The gradients of the session vectors are sums over processes; each receives its own part of the sums.

Scores are computed at once, on a GPU by `kernels/softmax.py`, or in chunks of items as in `cpu_softmax.py`, so that
memory stays bounded. `columns` and `amounts` raise or lower some scores of a session: the session's own items.
"""

from typing import Any

import torch
from torch import Tensor

from posrec import kernels
from posrec.nn.collectives import World
from posrec.nn.matmul import table_products
from posrec.nn.own_items import OwnItems
from posrec.nn.sharding import ShardedRows
from posrec.nn.table_rows import fresh
from posrec.training.cpu_softmax import raised_of, scores_of

if torch.cuda.is_available():
    from posrec.kernels.softmax import cross_entropy as fused_cross_entropy


def sharded_cross_entropy(
    rows: ShardedRows, items: int, chunk: int | None, sessions: Tensor, table: Tensor, targets: Tensor,
    own: OwnItems | None = None,
) -> Tensor:  # fmt: skip
    """The losses [b] of this process's samples, by a softmax over items 1..items, at once or `chunk` at a time."""
    if len(table) != len(rows):
        raise ValueError(f"the model returned {len(table)} item vectors, and this process holds {len(rows)} rows")
    columns, amounts = raised_of(own)
    if chunk is None and kernels.serve(sessions) and kernels.may_round():
        if columns is not None and amounts is not None:
            columns, amounts = columns - rows.start, amounts.float()
        local = targets - 1 - rows.start
        return fused_cross_entropy(sessions, table, local, rows.held, columns, amounts, rows.world)
    with torch.autocast(sessions.device.type, enabled=False):
        raised = (columns, None if amounts is None else amounts.float())
        held = max(0, min(items, rows.end) - rows.start)
        arguments = (rows, held, chunk or max(held, 1), sessions.float(), table.float(), targets, *raised)
        losses: Tensor = ShardedCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return losses


class ShardedCrossEntropy(torch.autograd.Function):
    """B samples in all, b of them of this process."""

    @staticmethod
    def forward(
        ctx: Any, rows: ShardedRows, held: int, chunk: int, own_sessions: Tensor, table: Tensor, own_targets: Tensor,
        own_columns: Tensor | None, own_amounts: Tensor | None,
    ) -> Tensor:  # fmt: skip
        world = rows.world
        sessions, targets = world.gathered(own_sessions), world.gathered(own_targets) - 1 - rows.start
        columns = None if own_columns is None else world.gathered(own_columns) - rows.start
        amounts = None if own_amounts is None else world.gathered(own_amounts)
        here = ((targets >= 0) & (targets < held)).to(sessions.dtype)  # [B] 1 if the target is one of our items
        targets = targets.clamp(0, len(table) - 1)
        parts = [slice(start, min(start + chunk, held)) for start in range(0, held, chunk)]
        logs, powers, top = [torch.full_like(here, -torch.inf)], None, None
        for part in parts:
            scores = scores_of(sessions, table, part, columns, amounts)
            if len(parts) == 1:  # kept for the backward pass
                top = scores.amax(1)
                powers = scores.sub_(top[:, None]).exp_()
                logs.append(powers.sum(1).log() + top)
            else:
                logs.append(scores.logsumexp(1))
        of_target = (sessions * table[targets]).sum(1)
        if columns is not None and amounts is not None:
            of_target = of_target + torch.where(columns == targets[:, None], amounts, 0).sum(1)
        mine = torch.stack([torch.stack(logs).logsumexp(0), of_target * here])
        everyone = world.gathered(mine[None])  # [processes, 2, B]
        normaliser = everyone[:, 0].logsumexp(0)
        ctx.save_for_backward(sessions, table, targets, here, normaliser, columns, amounts, powers, top)
        ctx.rows, ctx.held, ctx.parts = rows, held, parts
        losses = normaliser - everyone[:, 1].sum(0)
        return losses.view(world.size, -1)[world.rank].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sessions, table, targets, here, normaliser, columns, amounts, powers, top = ctx.saved_tensors
        world = ctx.rows.world
        share = world.gathered(gradients[0])[:, None]  # [B, 1]
        of_target = share * here[:, None]
        of_sessions, of_table = -table[targets] * of_target, torch.empty_like(table)
        of_table[ctx.held :] = 0
        of_amounts: Any = None if columns is None else -of_target * (columns == targets[:, None])
        for part in ctx.parts:
            if powers is None:
                chances, weight = scores_of(sessions, table, part, columns, amounts), share
                chances.sub_(normaliser[:, None]).exp_()
            else:  # the normaliser goes into the smaller factors of the products
                chances, weight = powers, share * (top - normaliser).exp()[:, None]
            with table_products():
                torch.mm(chances.T, sessions * weight, out=of_table[part])
                of_sessions += (chances @ table[part]) * weight
            if columns is not None:
                inside = (columns >= part.start) & (columns < part.stop)
                local = (columns - part.start).clamp(0, part.stop - part.start - 1)
                of_amounts += weight * chances.gather(1, local) * inside
        of_table.index_add_(0, targets, sessions * -of_target)
        d = sessions.shape[1]
        sums = world.sums_of_parts(of_sessions if columns is None else torch.cat([of_sessions, of_amounts], 1))
        return None, None, None, sums[:, :d], fresh(of_table), None, None, None if columns is None else sums[:, d:]


def join_processes(
    world: World, losses: Tensor, logs: Tensor, gradient: Tensor, table: Tensor, targets: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax over the items of all processes, from that of each over its own items r. With w_b = `shares`:

        log_b      = log sum_r exp(log_br)
        dloss/dh_b = w_b (sum_r exp(log_br - log_b) sum_{i in r} p_bir x_i - x_target)

    Args:
        losses, logs: [B] log_br - h_b x_target, and log_br; a target of another process has a score of 0.
        gradient: [B, d] w_b (sum_{i in r} p_bir x_i - x_target).
        targets: [B] rows of `table`, counted from 1; 0 for one of another process.

    Returns:
        Losses [b], log-sums [B] and gradients [b, d] of all items; losses and gradients of this process's samples.
    """
    everyone = world.gathered(torch.stack([logs, logs - losses])[None])  # [processes, 2, B]
    of_all = everyone[:, 0].logsumexp(0)
    shrink = (logs - of_all).exp()[:, None]
    of_target = torch.where(targets > 0, shares, 0)[:, None] * table[(targets - 1).clamp(min=0)]
    summed = world.sums_of_parts(shrink * gradient + (shrink - 1) * of_target)
    return (of_all - everyone[:, 1].sum(0)).view(world.size, -1)[world.rank], of_all, summed
