"""Softmax over all items, in two kernels that never store the scores of all items.

With scores s_bi = h_b . x_i, the weight w_b of each sample in the step's loss, and p_bi = exp(s_bi - log_b):

    log_b      = log sum_i exp(s_bi)
    loss       = sum_b w_b (log_b - h_b . x_target)              Eq. (11), (12)
    dloss/dh_b = w_b (sum_i p_bi x_i - x_target)
    dloss/dx_i = sum_b w_b (p_bi - [i is b's target]) h_b

The gradient of h is attention of the sessions over the items, so `parts_of_softmax` reads the table once, as attention
kernels do: each program takes a part of the items and keeps a running maximum. `join_parts` combines the parts. The
gradient of the items is computed where they are updated (`table_update.py`).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.launch import launch
from posrec.kernels.limits import block_of, may_round

LOG2E = tl.constexpr(1.4426950408889634)  # powers of 2 take fewer instructions than powers of e
ROWS = 128  # sessions of a batch in one block; half as many if vectors are wider than 128
PARTS = 128  # of the items; about one for each multiprocessor of a large GPU
ITEMS = 64  # in one block


@triton.jit
def product(a, b, HALF: tl.constexpr):
    """a @ b. Half precision has the ten bits of TF32 and is faster here; all factors are inside its range."""
    if HALF:
        return tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def load_block(matrix, row, rows, d: tl.constexpr, D: tl.constexpr):
    """Rows of a [rows, d] matrix as [.., D], filled up with zeros."""
    column = tl.arange(0, D)
    there = (row[:, None] < rows) & (column[None, :] < d)
    return tl.load(matrix + row[:, None].to(tl.int64) * d + column[None, :], mask=there, other=0.0)


@triton.jit
def parts_of_softmax(
    sessions, table, best, total, mean, batch, items,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """For one part of the items: the highest score, the sum of exp(score - highest), and of exp(..) times vectors."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    h = load_block(sessions, row, batch, d, D)  # [ROWS, D]
    if HALF:
        h = h.to(tl.float16)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    summed = tl.zeros([ROWS], tl.float32)
    vectors = tl.zeros([ROWS, D], tl.float32)
    first = part * ITEMS
    x = load_block(table, first + tl.arange(0, ITEMS), items, d, D)  # [ITEMS, D]
    for start in range(first, items, parts * ITEMS):
        now = x.to(tl.float16) if HALF else x
        item = start + tl.arange(0, ITEMS)
        x = load_block(table, item + parts * ITEMS, items, d, D)  # load the next block while this one is used
        scores = product(h, tl.trans(now), HALF) * LOG2E  # [ROWS, ITEMS]
        scores = tl.where(item[None, :] < items, scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher[:, None])
        summed = summed * shrink + tl.sum(weights, 1)
        vectors = vectors * shrink[:, None] + product(weights, now, HALF)
        highest = higher
    tl.store(best + part * batch + row, highest / LOG2E, mask=row < batch)
    tl.store(total + part * batch + row, summed, mask=row < batch)
    column = tl.arange(0, D)
    tl.store(mean + (part * batch + row[:, None]) * D + column[None, :], vectors, mask=row[:, None] < batch)


@triton.jit
def join_parts(
    sessions, table, targets, shares, best, total, mean, losses, logs, gradient, step, batch, parts,
    d: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """For one sample: its loss, its log-sum and the gradient of its vector. Also adds one to Adam's step count."""
    row = tl.program_id(0)
    if row == 0:
        tl.store(step, tl.load(step) + 1)
    part, column = tl.arange(0, PARTS), tl.arange(0, D)
    there = part < parts
    highest = tl.load(best + part * batch + row, mask=there, other=-float("inf"))
    summed = tl.load(total + part * batch + row, mask=there, other=0.0)
    top = tl.max(highest, 0)
    log = top + tl.log(tl.sum(summed * tl.exp(highest - top), 0))
    weight = tl.exp(highest - log)
    vectors = tl.load(
        mean + (part[:, None] * batch + row) * D + column[None, :],
        mask=there[:, None] & (column[None, :] < d),
        other=0.0,
    )
    expected = tl.sum(weight[:, None] * vectors, 0)  # [D] sum_i p_bi x_i
    target = tl.load(targets + row) - 1
    x = tl.load(table + target * d + column, mask=(column < d) & (target >= 0), other=0.0)
    h = tl.load(sessions + row * d + column, mask=column < d, other=0.0)
    tl.store(losses + row, log - tl.sum(x * h, 0))
    tl.store(logs + row, log)
    tl.store(gradient + row * d + column, tl.load(shares + row) * (expected - x), mask=column < d)


def blocks(batch: int, d: int) -> tuple[int, int]:
    """Block sizes, powers of two: columns for d dimensions, and rows that fit into a multiprocessor's memory."""
    wide = block_of(d)
    return wide, min(ROWS if wide <= 128 else ROWS // 2, block_of(batch))


@dataclass(frozen=True)
class Softmax:
    """The softmax of a step: the losses of the samples, their log-sums, and the gradient of their vectors."""

    losses: Tensor  # [B]
    logs: Tensor  # [B]
    gradient: Tensor  # [B, d]


def softmax(sessions: Tensor, table: Tensor, items: int, targets: Tensor, shares: Tensor, step: Tensor) -> Softmax:
    """Cross entropy of `sessions [B, d]` over the table's first `items` rows; adds one to Adam's `step`. The score of a
    target of 0, which is not in the table, counts as 0."""
    batch, d = sessions.shape
    wide, rows = blocks(batch, d)
    parts = min(PARTS, triton.cdiv(items, ITEMS))
    best, total = sessions.new_empty(2, parts, batch)
    mean = sessions.new_empty(parts, batch, wide)
    losses, logs = sessions.new_empty(2, batch)
    gradient = torch.empty_like(sessions)
    launch(parts_of_softmax, parts, triton.cdiv(batch, rows))(
        sessions, table, best, total, mean, batch, items, d, wide, rows, ITEMS, may_round(), num_warps=8
    )
    launch(join_parts, batch)(
        sessions, table, targets, shares, best, total, mean, losses, logs, gradient, step, batch, parts, d, wide,
        triton.next_power_of_2(parts),
    )  # fmt: skip
    return Softmax(losses, logs, gradient)
