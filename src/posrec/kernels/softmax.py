"""Cross entropy over all items, with its gradient by autograd, for large batches on a GPU.

Scores and the factors of all products are in half precision, with the ten bits of TF32 and half its
time; all sums are in single precision."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.launch import launch

BLOCK = 2048  # scores that a program reads at once
LARGEST = 32768.0  # in G after scaling


@triton.jit
def log_sum_kernel(scores, logs, items, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, BLOCK)
    # Every position has its own highest score and sum, so that threads are combined only once.
    highest = tl.full([BLOCK], -1e30, tl.float32)
    summed = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        column = start + position
        # n is usually a multiple of 16 and `items` is not: bounded by n, a thread loads four scores
        # at once.
        score = tl.load(scores + row * n + column, mask=column < n, other=-float("inf"))
        score = tl.where(column < items, score.to(tl.float32), -float("inf"))
        higher = tl.maximum(highest, score)
        summed = summed * tl.exp(highest - higher) + tl.exp(score - higher)
        highest = higher
    top = tl.max(highest, 0)
    tl.store(logs + row, top + tl.log(tl.sum(summed * tl.exp(highest - top), 0)))


@triton.jit
def changes_kernel(
    scores, logs, targets, factors, changes, items, n, BLOCK: tl.constexpr
):
    """G of one row and BLOCK columns, times the scale that is part of `factors`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + row * n + column, mask=column < n, other=0.0)
    is_target = column == tl.load(targets + row)
    chance = tl.exp(score.to(tl.float32) - tl.load(logs + row))
    change = chance - is_target.to(tl.float32)
    change = tl.where(column < items, change * tl.load(factors + row), 0.0)
    tl.store(changes + row * n + column, change.to(tl.float16), mask=column < n)


@torch.library.custom_op("posrec::scores_and_logs", mutates_args=())
def scores_and_logs(
    sessions: Tensor,
    table: Tensor,
    items: int,
    columns: Tensor | None,
    amounts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """h [B, d] and X [n, d] in half precision -> s [B, n] and log [B]; only the first `items` rows
    are items."""
    scores = torch.mm(sessions, table.T)
    if columns is not None and amounts is not None:
        scores.scatter_add_(1, columns, amounts.half())
    batch, n = scores.shape
    logs = scores.new_empty(batch, dtype=torch.float32)
    launch(log_sum_kernel, batch)(scores, logs, items, n, BLOCK, num_warps=8)
    return scores, logs


@scores_and_logs.register_fake
def _(sessions, table, items, columns, amounts):
    scores = sessions.new_empty(sessions.shape[0], table.shape[0])
    return scores, scores.new_empty(sessions.shape[0], dtype=torch.float32)


@torch.library.custom_op("posrec::cross_entropy_backward", mutates_args=())
def cross_entropy_backward(
    scores: Tensor,
    logs: Tensor,
    targets: Tensor,
    factors: Tensor,
    sessions: Tensor,
    table: Tensor,
    items: int,
) -> tuple[Tensor, Tensor]:
    """dh [B, d] and dX [n, d], where `factors [B]` takes the place of g."""
    batch, n = scores.shape
    changes = torch.empty_like(scores)
    launch(changes_kernel, batch, triton.cdiv(n, BLOCK))(
        scores, logs, targets, factors, changes, items, n, BLOCK, num_warps=8
    )
    grad_sessions = torch.mm(changes, table, out_dtype=torch.float32)
    return grad_sessions, torch.mm(changes.T, sessions, out_dtype=torch.float32)


@cross_entropy_backward.register_fake
def _(scores, logs, targets, factors, sessions, table, items):
    return logs.new_empty(sessions.shape), logs.new_empty(table.shape)


class CrossEntropy(torch.autograd.Function):
    """With scores s_bi = h_b . x_i and p_bi = exp(s_bi - log_b), log_b = log sum_i exp(s_bi):

        loss_b = log_b - s_b,target                              Eq. (11), (12)
        dh = G X,   dX = G^T h,   G_bi = g_b (p_bi - [i is b's target])

    where g_b is the gradient of loss_b. `columns` and `amounts` raise the scores of a session's own
    items before the sum.
    """

    @staticmethod
    def forward(ctx, sessions, table, targets, items, columns, amounts):
        sessions = sessions.half()
        table = table.half()
        scores, logs = scores_and_logs(sessions, table, items, columns, amounts)
        ctx.save_for_backward(sessions, table, targets, scores, logs, columns)
        ctx.items = items
        return logs - scores.gather(1, targets[:, None])[:, 0].float()

    @staticmethod
    def backward(ctx, gradient):
        sessions, table, targets, scores, logs, columns = ctx.saved_tensors
        scale = LARGEST / gradient.abs().max().clamp(min=1e-20)
        grad_sessions, grad_table = cross_entropy_backward(
            scores, logs, targets, gradient * scale, sessions, table, ctx.items
        )
        grad_amounts = None
        if columns is not None:
            chances = (scores.gather(1, columns).float() - logs[:, None]).exp()
            is_target = (columns == targets[:, None]).float()
            grad_amounts = gradient[:, None] * (chances - is_target)
        return grad_sessions / scale, grad_table / scale, None, None, None, grad_amounts


def cross_entropy(
    sessions: Tensor,
    table: Tensor,
    targets: Tensor,
    items: int,
    columns: Tensor | None = None,
    amounts: Tensor | None = None,
) -> Tensor:
    """sessions [B, d], table [n, d] whose first `items` rows are items, rows `targets` [B] of the
    table -> losses [B]."""
    losses: Tensor = CrossEntropy.apply(
        sessions, table, targets, items, columns, amounts
    )
    return losses
