"""The softmax over all items on a CPU: at once, or in chunks that never store all scores.

On a CPU a pass over the scores of all items takes as long as computing them. So exp(score - top) is computed once, in
place, and never divided by its sum: the backward pass puts the sums and the weights of the samples into the smaller
factors of its products. In chunks, each part of the table's gradient is written directly to its place.

`columns [B, R]` and `amounts [B, R]` raise or lower some scores of a session: the session's own items.
"""

from typing import Any

import torch
from torch import Tensor

from posrec.nn.items.own_items import OwnItems
from posrec.nn.layers.matmul import table_products


def at_once(sessions: Tensor, table: Tensor, targets: Tensor, items: int, own: OwnItems | None = None) -> Tensor:
    """Losses [B]; the table's first `items` rows are items 1..items."""
    losses: Tensor = AtOnce.apply(sessions, table, targets - 1, items, *raised_of(own))  # type: ignore[no-untyped-call]
    return losses


def in_chunks(
    sessions: Tensor, table: Tensor, targets: Tensor, items: int, chunk: int, own: OwnItems | None = None
) -> Tensor:
    """The same, with the scores of `chunk` items at a time, which are computed again in the backward pass."""
    arguments = (sessions, table, targets - 1, items, chunk, *raised_of(own))
    losses: Tensor = InChunks.apply(*arguments)  # type: ignore[no-untyped-call]
    return losses


def raised_of(own: OwnItems | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if own is None else (own.columns, own.amounts)


def raised_in(columns: Tensor, amounts: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Columns and amounts for the items start..end-1 alone; the amounts of all others are 0."""
    inside = (columns >= start) & (columns < end)
    return (columns - start).clamp(0, end - start - 1), torch.where(inside, amounts, 0)


def amount_at(targets: Tensor, columns: Tensor, amounts: Tensor) -> Tensor:
    """By how much the score of each session's target, [B], is raised."""
    return torch.where(columns == targets[:, None], amounts, 0).sum(1)


class AtOnce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sessions: Tensor, table: Tensor, targets: Tensor, items: int, columns: Tensor | None,
        amounts: Tensor | None,
    ) -> Tensor:  # fmt: skip
        with table_products():
            scores = sessions @ table.T
        scores[:, items:] = -torch.inf
        if columns is not None and amounts is not None:
            scores.scatter_add_(1, columns, amounts.to(scores.dtype))
        of_target = scores.gather(1, targets[:, None])[:, 0]
        top = scores.amax(1, keepdim=True)
        powers = scores.sub_(top).exp_()
        sums = powers.sum(1)
        ctx.save_for_backward(sessions, table, targets, powers, sums, columns)
        return sums.log() + top[:, 0] - of_target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sessions, table, targets, powers, sums, columns = ctx.saved_tensors
        share = gradients[0][:, None]
        weight = share / sums[:, None]
        with table_products():
            grad_table, grad_sessions = powers.T @ (sessions * weight), powers @ table
        grad_table.index_add_(0, targets, sessions * -share)
        grad_amounts = None
        if columns is not None:
            grad_amounts = powers.gather(1, columns) * weight - share * (columns == targets[:, None])
        return grad_sessions * weight - table[targets] * share, grad_table, None, None, None, grad_amounts


class InChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sessions: Tensor, table: Tensor, targets: Tensor, items: int, chunk: int, columns: Tensor | None,
        amounts: Tensor | None,
    ) -> Tensor:  # fmt: skip
        ctx.parts = [slice(start, min(start + chunk, items)) for start in range(0, items, chunk)]
        logs = [scores_of(sessions, table, part, columns, amounts).logsumexp(1) for part in ctx.parts]
        normaliser = torch.stack(logs).logsumexp(0)
        ctx.save_for_backward(sessions, table, targets, normaliser, columns, amounts)
        ctx.items = items
        of_target = (sessions * table[targets]).sum(1)
        if columns is not None and amounts is not None:
            of_target = of_target + amount_at(targets, columns, amounts)
        return normaliser - of_target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sessions, table, targets, normaliser, columns, amounts = ctx.saved_tensors
        share = gradients[0][:, None]
        grad_sessions, grad_table = torch.zeros_like(sessions), torch.empty_like(table)
        grad_table[ctx.items :] = 0
        grad_amounts: Any = None if columns is None else -share * (columns == targets[:, None])
        for part in ctx.parts:
            chances = scores_of(sessions, table, part, columns, amounts).sub_(normaliser[:, None]).exp_()
            with table_products():
                torch.mm(chances.T, sessions * share, out=grad_table[part])
                grad_sessions += chances @ table[part]
            if columns is not None:
                local, inside = raised_in(columns, torch.ones_like(amounts), part.start, part.stop)
                grad_amounts += share * chances.gather(1, local) * inside
        grad_table.index_add_(0, targets, sessions * -share)
        return (grad_sessions - table[targets]) * share, grad_table, None, None, None, None, grad_amounts


def scores_of(sessions: Tensor, table: Tensor, part: slice, columns: Tensor | None, amounts: Tensor | None) -> Tensor:
    """The scores of the items of one part, [B, items]."""
    with table_products():
        scores = sessions @ table[part].T
    if columns is not None and amounts is not None:
        scores.scatter_add_(1, *raised_in(columns, amounts.to(scores.dtype), part.start, part.stop))
    return scores
