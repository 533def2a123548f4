"""The softmax over all items on a CPU: at once, or in chunks that never store all scores.

On a CPU a pass over the scores of all items takes as long as computing them. So exp(score - top) is computed once, in
place, and never divided by its sum: the backward pass puts the sums and the weights of the samples into the smaller
factors of its products. In chunks it is computed again instead of stored. Each part of the table's gradient is written
directly to its place.

`columns [B, R]` and `amounts [B, R]` raise or lower some scores of a session: the session's own items.
"""

from typing import Any

import torch
from torch import Tensor

from posrec.nn.items.own_items import OwnItems
from posrec.nn.layers.matmul import table_products


def cpu_softmax(
    sessions: Tensor, table: Tensor, targets: Tensor, items: int, own: OwnItems | None, chunk: int | None = None
) -> Tensor:
    """Losses [B]; the table's first `items` rows are items 1..items. With `chunk`, the scores of so many items at a
    time."""
    raised = (None, None) if own is None else (own.columns, own.amounts)
    losses: Tensor = Softmax.apply(sessions, table, targets - 1, items, chunk, *raised)  # type: ignore[no-untyped-call]
    return losses


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sessions: Tensor,
        table: Tensor,
        targets: Tensor,
        items: int,
        chunk: int | None,
        columns: Tensor | None,
        amounts: Tensor | None,
    ) -> Tensor:
        ctx.items, step = items, chunk or items
        ctx.parts = [slice(start, min(start + step, items)) for start in range(0, items, step)]
        tops, sums = [], []
        for part in ctx.parts:
            scores = scores_of(sessions, table, part, columns, amounts)
            tops.append(scores.amax(1))
            powers = scores.sub_(tops[-1][:, None]).exp_()
            sums.append(powers.sum(1))
        log_sum = (torch.stack(sums).log() + torch.stack(tops)).logsumexp(0)
        stored = (powers, sums[0]) if chunk is None else (None, None)
        ctx.save_for_backward(sessions, table, targets, log_sum, *stored, columns, amounts)
        of_target = (sessions * table[targets]).sum(1)
        if columns is not None and amounts is not None:
            of_target = of_target + amount_at(targets, columns, amounts)
        return log_sum - of_target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sessions, table, targets, log_sum, powers, sums, columns, amounts = ctx.saved_tensors
        share = gradients[0][:, None]
        weight = share if sums is None else share / sums[:, None]
        grad_sessions, grad_table = torch.zeros_like(sessions), torch.empty_like(table)
        grad_table[ctx.items :] = 0
        grad_amounts: Any = None if columns is None else -share * (columns == targets[:, None])
        for part in ctx.parts:
            if sums is None:
                powers = scores_of(sessions, table, part, columns, amounts).sub_(log_sum[:, None]).exp_()
            with table_products():
                torch.mm(powers.T, sessions * weight, out=grad_table[part])
                grad_sessions += powers @ table[part]
            if columns is not None:
                local, inside = raised_in(columns, torch.ones_like(amounts), part.start, part.stop)
                grad_amounts += weight * powers.gather(1, local) * inside
        grad_table.index_add_(0, targets, sessions * -share)
        return grad_sessions * weight - table[targets] * share, grad_table, None, None, None, None, grad_amounts


def scores_of(sessions: Tensor, table: Tensor, part: slice, columns: Tensor | None, amounts: Tensor | None) -> Tensor:
    """The scores of the items of one part, [B, items]."""
    with table_products():
        scores = sessions @ table[part].T
    if columns is not None and amounts is not None:
        scores.scatter_add_(1, *raised_in(columns, amounts.to(scores.dtype), part.start, part.stop))
    return scores


def raised_in(columns: Tensor, amounts: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Columns and amounts for the items start..end-1 alone; the amounts of all others are 0."""
    inside = (columns >= start) & (columns < end)
    return (columns - start).clamp(0, end - start - 1), torch.where(inside, amounts, 0)


def amount_at(targets: Tensor, columns: Tensor, amounts: Tensor) -> Tensor:
    """By how much the score of each session's target, [B], is raised."""
    return torch.where(columns == targets[:, None], amounts, 0).sum(1)
