"""The softmax over all items: Eq. (11) and (12), the cross entropy of each sample, at once or in
chunks of the items.

`softmax_loss` chooses how it is computed. `log_sum_and_target` is the equation, for any device and
precision. `Softmax` is for a CPU: exp(score - top) is computed once, in place, and never divided by
its sum. A GPU has `kernels/softmax.py`. In chunks, scores are computed again in the backward pass
instead of stored."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import posrec.kernels as kernels
from posrec.nn.items.own_items import OwnItems

# sessions [B, d], table [n or a few more, d], targets [B] -> [B]. A softmax takes the term for the
# session's own items as a fourth argument: `amounts [B, R]` are added to the scores at `columns
# [B, R]`.
Loss = Callable[..., Tensor]

rounding: ContextVar[bool] = ContextVar("rounding", default=False)
CHUNK = 65_536  # items
LOWEST = -1e30  # of a row that is not an item: exp of it is 0, its gradient not NaN


def softmax_loss(items: int, chunk: int | None = None) -> Loss:
    """The table's first `items` rows are items 1..items. With `chunk`, the scores of that many
    items at a time: the same value in less memory."""
    workspace = Workspace(items, chunk)

    def loss(
        sessions: Tensor, table: Tensor, targets: Tensor, own: OwnItems | None = None
    ) -> Tensor:
        rows = targets - 1
        if is_for_cpu(sessions):
            if own is None:
                columns = rows.new_empty(len(rows), 0)
                amounts = sessions.new_empty(len(rows), 0)
            else:
                columns = own.columns
                amounts = own.amounts
            losses: Tensor = Softmax.apply(  # type: ignore[no-untyped-call]
                sessions, table, rows, columns, amounts, workspace
            )
            return losses
        raised = None if own is None else (own.columns, own.amounts.float())
        if chunk is None and kernels.supports(sessions) and kernels.may_round():
            own_scores = raised or ()
            return kernels.cross_entropy(sessions, table, rows, items, *own_scores)
        log_sum, of_target = log_sum_and_target(
            sessions, table, rows, items, chunk, raised
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
    `targets [B]`, or 0 if it is not among them. `raised`: columns and amounts, if there are any."""

    def of_chunk(start: int, sessions: Tensor, vectors: Tensor) -> Tensor:
        scores = (sessions @ vectors.T).float()
        end = start + len(vectors)
        if raised is not None:
            scores = scores.scatter_add(1, *raised_in(*raised, start, end))
        if items < end:
            row = torch.arange(start, end, device=table.device)
            scores = scores.masked_fill(row >= items, LOWEST)
        is_here = (targets >= start) & (targets < min(end, items))
        column = (targets - start).clamp(0, len(vectors) - 1)
        of_target = scores.gather(1, column[:, None])[:, 0]
        return torch.stack([scores.logsumexp(1), torch.where(is_here, of_target, 0)])

    if chunk is None:
        return of_chunk(0, sessions, table)
    chunks = [
        checkpoint(
            of_chunk, start, sessions, table[start : start + chunk], use_reentrant=False
        )
        for start in range(0, items, chunk)
    ]
    log_sums, of_targets = torch.stack(chunks, 1)
    return torch.stack([log_sums.logsumexp(0), of_targets.sum(0)])


@dataclass
class Workspace:
    """What is summed over, and on a CPU the memory for scores, which each step hands to the next:
    to get it from the system, page by page, takes about as long as to compute the scores."""

    items: int
    chunk: int | None
    spare: Tensor | None = None

    def take(self, sessions: Tensor) -> Tensor:
        """Memory for the scores of a chunk, which nobody else has until it is `spare` again."""
        size = len(sessions) * min(self.chunk or self.items, self.items)
        spare = self.spare
        self.spare = None
        if spare is not None and len(spare) >= size and spare.dtype == sessions.dtype:
            return spare
        return sessions.new_empty(size)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sessions: Tensor,
        table: Tensor,
        targets: Tensor,
        columns: Tensor,
        amounts: Tensor,
        workspace: Workspace,
    ) -> Tensor:
        items = workspace.items
        size = workspace.chunk or items
        ctx.workspace = workspace
        ctx.memory = workspace.take(sessions)
        ctx.chunks = [
            slice(start, min(start + size, items)) for start in range(0, items, size)
        ]
        tops = []
        sums = []
        for rows in ctx.chunks:
            scores = scores_of(sessions, table, rows, columns, amounts, ctx.memory)
            tops.append(scores.amax(1))
            powers = scores.sub_(tops[-1][:, None]).exp_()
            sums.append(powers.sum(1))
        log_sum = (torch.stack(sums).log() + torch.stack(tops)).logsumexp(0)
        stored = (powers, sums[0]) if workspace.chunk is None else (None, None)
        ctx.save_for_backward(
            sessions, table, targets, log_sum, *stored, columns, amounts
        )
        raised = torch.where(columns == targets[:, None], amounts, 0)
        of_target = (sessions * table[targets]).sum(1) + raised.sum(1)
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
        grad_table[ctx.workspace.items :] = 0
        grad_amounts = -share * (columns == targets[:, None])
        for rows in ctx.chunks:
            if sums is None:
                scores = scores_of(sessions, table, rows, columns, amounts, ctx.memory)
                powers = scores.sub_(log_sum[:, None]).exp_()
            with table_products():
                torch.mm(powers.T, sessions * weight, out=grad_table[rows])
                grad_sessions += powers @ table[rows]
            ones = torch.ones_like(amounts)
            local, inside = raised_in(columns, ones, rows.start, rows.stop)
            grad_amounts += weight * powers.gather(1, local) * inside
        ctx.workspace.spare = ctx.memory
        grad_table.index_add_(0, targets, sessions * -share)
        grad_sessions = grad_sessions * weight - table[targets] * share
        return grad_sessions, grad_table, None, None, grad_amounts, None


def scores_of(
    sessions: Tensor,
    table: Tensor,
    rows: slice,
    columns: Tensor,
    amounts: Tensor,
    memory: Tensor,
) -> Tensor:
    """The scores of the items of a chunk, [B, items], in `memory`."""
    shape = (len(sessions), rows.stop - rows.start)
    scores = memory[: math.prod(shape)].view(shape)
    with table_products():
        torch.mm(sessions, table[rows].T, out=scores)
    amounts = amounts.to(scores.dtype)
    return scores.scatter_add_(1, *raised_in(columns, amounts, rows.start, rows.stop))


def raised_in(
    columns: Tensor, amounts: Tensor, start: int, end: int
) -> tuple[Tensor, Tensor]:
    """Columns and amounts for the items start..end-1 alone; the amounts of all others are 0."""
    inside = (columns >= start) & (columns < end)
    return (columns - start).clamp(0, end - start - 1), torch.where(inside, amounts, 0)


@contextmanager
def rounded_table_products(rounded: bool) -> Iterator[None]:
    """In the block, `table_products` rounds, or does not."""
    token = rounding.set(rounded)
    try:
        yield
    finally:
        rounding.reset(token)


@contextmanager
def table_products() -> Iterator[None]:
    """Around products with an item table on a CPU: their factors may be rounded to 8 bits, which
    takes half the time with AMX. The shapes of other products change with every batch, and oneDNN
    takes milliseconds to prepare for a new shape."""
    if not rounding.get():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
