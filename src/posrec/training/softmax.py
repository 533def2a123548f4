"""The softmax over all items: Eq. (11) and (12), the cross entropy of each sample, at once or in
chunks of the items.

`softmax_loss` chooses how it is computed. `log_sum_and_target` is the equation, for any device and
precision. `Softmax` is for a CPU: exp(score - top) is computed once, in place, and never divided by
its sum. A GPU has `kernels/softmax.py`. In chunks, scores are computed again in the backward pass
instead of stored.

`columns [B, R]` and `amounts [B, R]` raise or lower the scores of the session's own items.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import posrec.kernels as kernels
from posrec.nn.items.own_items import OwnItems
from posrec.nn.items.table_products import table_products

# sessions [B, d], table [n or a few more, d], targets [B] -> [B]. A softmax takes the term for the
# session's own items as a fourth argument: they are raised or lowered in it.
Loss = Callable[..., Tensor]

CHUNK = 65_536  # items
LOWEST = (
    -1e30
)  # the score of a row that is no item: exp of it is 0, and its gradient is not NaN


def softmax_loss(items: int, chunk: int | None = None) -> Loss:
    """The table's first `items` rows are items 1..items. With `chunk`, the scores of so many items
    at a time: the same value in less memory."""

    def loss(
        sessions: Tensor, table: Tensor, targets: Tensor, own: OwnItems | None = None
    ) -> Tensor:
        if is_for_cpu(sessions):
            columns, amounts = (
                (None, None) if own is None else (own.columns, own.amounts)
            )
            losses: Tensor = Softmax.apply(
                sessions, table, targets - 1, items, chunk, columns, amounts
            )  # type: ignore[no-untyped-call]
            return losses
        raised = None if own is None else (own.columns, own.amounts.float())
        if chunk is None and kernels.supports(sessions) and kernels.may_round():
            return kernels.cross_entropy(
                sessions, table, targets - 1, items, *(raised or ())
            )
        log_sum, of_target = log_sum_and_target(
            sessions, table, targets - 1, items, chunk, raised
        ).unbind()
        return log_sum - of_target

    return loss


def is_for_cpu(sessions: Tensor) -> bool:
    """Whether `Softmax` computes the loss; it is not for reduced precision."""
    return sessions.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def log_sum_and_target(
    sessions: Tensor,
    table: Tensor,
    targets: Tensor,
    items: int,
    chunk: int | None,
    raised: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """[2, B]: log sum_i exp(s_b x_i) over the table's first `items` rows, and the score of row
    `targets [B]`, or 0 if it is not among them. `raised`: columns and amounts."""

    def of_part(start: int, sessions: Tensor, part: Tensor) -> Tensor:
        scores = (sessions @ part.T).float()
        if raised is not None:
            scores = scores.scatter_add(
                1, *raised_in(*raised, start, start + len(part))
            )
        end = min(start + len(part), items)
        if end < start + len(part):
            row = torch.arange(start, start + len(part), device=table.device)
            scores = scores.masked_fill(row >= items, LOWEST)
        is_here = (targets >= start) & (targets < end)
        of_target = scores.gather(
            1, (targets - start).clamp(0, len(part) - 1)[:, None]
        )[:, 0]
        return torch.stack([scores.logsumexp(1), torch.where(is_here, of_target, 0)])

    if chunk is None:
        return of_part(0, sessions, table)
    parts = [
        checkpoint(
            of_part, start, sessions, table[start : start + chunk], use_reentrant=False
        )
        for start in range(0, items, chunk)
    ]
    log_sums, of_targets = torch.stack(parts, 1)
    return torch.stack([log_sums.logsumexp(0), of_targets.sum(0)])


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
        ctx.items = items
        step = chunk or items
        ctx.parts = [
            slice(start, min(start + step, items)) for start in range(0, items, step)
        ]
        tops = []
        sums = []
        for part in ctx.parts:
            scores = scores_of(sessions, table, part, columns, amounts)
            tops.append(scores.amax(1))
            powers = scores.sub_(tops[-1][:, None]).exp_()
            sums.append(powers.sum(1))
        log_sum = (torch.stack(sums).log() + torch.stack(tops)).logsumexp(0)
        stored = (powers, sums[0]) if chunk is None else (None, None)
        ctx.save_for_backward(
            sessions, table, targets, log_sum, *stored, columns, amounts
        )
        of_target = (sessions * table[targets]).sum(1)
        if columns is not None and amounts is not None:
            of_target = of_target + torch.where(
                columns == targets[:, None], amounts, 0
            ).sum(1)
        return log_sum - of_target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sessions, table, targets, log_sum, powers, sums, columns, amounts = (
            ctx.saved_tensors
        )
        share = gradients[0][:, None]
        weight = share if sums is None else share / sums[:, None]
        grad_sessions = torch.zeros_like(sessions)
        grad_table = torch.empty_like(table)
        grad_table[ctx.items :] = 0
        grad_amounts: Any = (
            None if columns is None else -share * (columns == targets[:, None])
        )
        for part in ctx.parts:
            if sums is None:
                powers = (
                    scores_of(sessions, table, part, columns, amounts)
                    .sub_(log_sum[:, None])
                    .exp_()
                )
            with table_products():
                torch.mm(powers.T, sessions * weight, out=grad_table[part])
                grad_sessions += powers @ table[part]
            if columns is not None:
                local, inside = raised_in(
                    columns, torch.ones_like(amounts), part.start, part.stop
                )
                grad_amounts += weight * powers.gather(1, local) * inside
        grad_table.index_add_(0, targets, sessions * -share)
        return (
            grad_sessions * weight - table[targets] * share,
            grad_table,
            None,
            None,
            None,
            None,
            grad_amounts,
        )


def scores_of(
    sessions: Tensor,
    table: Tensor,
    part: slice,
    columns: Tensor | None,
    amounts: Tensor | None,
) -> Tensor:
    """The scores of the items of one part, [B, items]."""
    with table_products():
        scores = sessions @ table[part].T
    if columns is not None and amounts is not None:
        scores.scatter_add_(
            1, *raised_in(columns, amounts.to(scores.dtype), part.start, part.stop)
        )
    return scores


def raised_in(
    columns: Tensor, amounts: Tensor, start: int, end: int
) -> tuple[Tensor, Tensor]:
    """Columns and amounts for the items start..end-1 alone; the amounts of all others are 0."""
    inside = (columns >= start) & (columns < end)
    return (columns - start).clamp(0, end - start - 1), torch.where(inside, amounts, 0)
