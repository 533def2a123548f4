"""Cross entropy over all items for large batches, where the matrix products take most of a step.

With scores s_bi = h_b . x_i and p_bi = exp(s_bi - log_b), where log_b = log sum_i exp(s_bi):

    loss_b = log_b - s_b,target                                  Eq. (11), (12)
    dh = G X,   dX = G^T h,    G_bi = g_b (p_bi - [i is b's target])          g_b: the gradient of loss_b

The factors of all three products are in half precision, which has the ten bits of TF32; the sums are in single
precision. The products are cuBLAS's: for half precision they are much faster than for TF32, whose transposed factors
the matrix units can't read. G is scaled so that its largest possible value is in the upper range of half precision.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # scores that a program reads at once
LARGEST = 32768.0  # in G after scaling


@triton.jit
def log_sum_kernel(scores, logs, items, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    # Every thread keeps the highest score and the sum of its own places, so that threads are combined only once.
    highest = tl.full([BLOCK], -1e30, tl.float32)
    summed = tl.zeros([BLOCK], tl.float32)
    for start in range(0, items, BLOCK):
        score = tl.load(scores + row * stride + start + place, mask=start + place < items, other=-float("inf"))
        higher = tl.maximum(highest, score)
        summed = summed * tl.exp(highest - higher) + tl.exp(score - higher)
        highest = higher
    top = tl.max(highest, 0)
    tl.store(logs + row, top + tl.log(tl.sum(summed * tl.exp(highest - top), 0)))


@torch.library.custom_op("posrec::scores_and_logs", mutates_args=())
def scores_and_logs(sessions: Tensor, table: Tensor, items: int) -> tuple[Tensor, Tensor]:
    """h [B, d] and X [n, d] in half precision -> s [B, n] and log [B]; only the first `items` rows are items."""
    scores = torch.mm(sessions, table.T, out_dtype=torch.float32)
    logs = scores.new_empty(len(scores))
    log_sum_kernel[(len(scores),)](scores, logs, items, scores.stride(0), BLOCK, num_warps=8)
    return scores, logs


@scores_and_logs.register_fake
def _(sessions: Tensor, table: Tensor, items: int) -> tuple[Tensor, Tensor]:
    scores = sessions.new_empty(sessions.shape[0], table.shape[0], dtype=torch.float32)
    return scores, scores.new_empty(sessions.shape[0])


@torch.library.custom_op("posrec::products_with", mutates_args=())
def products_with(changes: Tensor, sessions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """G [B, n], h [B, d], X [n, d] in half precision -> G X [B, d] and G^T h [n, d] in single precision."""
    of_sessions = torch.mm(changes, table, out_dtype=torch.float32)
    return of_sessions, torch.mm(changes.T, sessions, out_dtype=torch.float32)


@products_with.register_fake
def _(changes: Tensor, sessions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    shapes = sessions.shape, table.shape
    return tuple(changes.new_empty(shape, dtype=torch.float32) for shape in shapes)  # type: ignore[return-value]


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sessions: Tensor, table: Tensor, targets: Tensor, items: int) -> Tensor:
        sessions, table = sessions.half(), table.half()
        scores, logs = scores_and_logs(sessions, table, items)
        ctx.save_for_backward(sessions, table, targets, scores, logs)
        ctx.items = items
        return logs - scores.gather(1, targets[:, None])[:, 0]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        sessions, table, targets, scores, logs = ctx.saved_tensors
        scale = LARGEST / gradient.abs().max().clamp(min=1e-20)
        row = torch.arange(len(table), device=table.device)
        change = (scores - logs[:, None]).exp() - (row == targets[:, None]).float()
        changes = torch.where(row < ctx.items, change * (gradient * scale)[:, None], 0).half()
        of_sessions, of_table = products_with(changes, sessions, table)
        return of_sessions / scale, of_table / scale, None, None


def cross_entropy(sessions: Tensor, table: Tensor, targets: Tensor, items: int) -> Tensor:
    """sessions [B, d], table [n, d] whose first `items` rows are items, their rows `targets` [B] -> losses [B]."""
    losses: Tensor = CrossEntropy.apply(sessions, table, targets, items)
    return losses
