"""Softmax over all items and Adam for the item table, in three kernels that never store the scores of all items.

With scores s_bi = h_b . x_i, the weight w_b of each sample in the step's loss, and p_bi = exp(s_bi - log_b):

    log_b      = log sum_i exp(s_bi)
    loss       = sum_b w_b (log_b - h_b . x_target)              Eq. (11), (12)
    dloss/dh_b = w_b (sum_i p_bi x_i - x_target)
    dloss/dx_i = sum_b w_b (p_bi - [i is b's target]) h_b

The gradient of h is attention of the sessions over the items, so `parts_of_softmax` reads the table once, as attention
kernels do: each program takes a part of the items and keeps a running maximum. `join_parts` combines the parts. After
the encoder's backward pass, which computes the encoder's share of the table's gradient, `update_table` computes the
scores again, block by block, and applies Adam directly: the gradient of the softmax is never written to memory.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels import block_of, precision
from posrec.kernels.launch import launch

ROWS = 128  # sessions of a batch in one block; half as many if vectors are wider than 128
PARTS = 128  # of the items; about one for each multiprocessor of a large GPU
ITEMS = 64  # in one block
UPDATERS, UPDATED = 264, 16  # programs that update the table, and the items of a block of theirs
SCALE = 32768.0  # brings factors of at most 1 into the middle of the range of half precision


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
        scores = product(h, tl.trans(now), HALF)  # [ROWS, ITEMS]
        scores = tl.where(item[None, :] < items, scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp(highest - higher)
        weights = tl.exp(scores - higher[:, None])
        summed = summed * shrink + tl.sum(weights, 1)
        vectors = vectors * shrink[:, None] + product(weights, now, HALF)
        highest = higher
    tl.store(best + part * batch + row, highest, mask=row < batch)
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


@triton.jit
def gradient_of_items(x, item, h, log, share, target, SCALE: tl.constexpr, HALF: tl.constexpr):
    """sum_b w_b (p_bi - [i is b's target]) h_b of a block of items, [ITEMS, D]."""
    probability = tl.exp(product(x, tl.trans(h), HALF) - log[None, :])  # [ITEMS, ROWS]
    is_target = (item[:, None] == target[None, :]).to(tl.float32)
    return product((probability - is_target) * (share * SCALE)[None, :], h, HALF) / SCALE


@triton.jit
def update_table(
    table, own_gradient, latest, first, second, sessions, logs, shares, targets, rate, step, l2, beta1, beta2,
    epsilon, batch, items, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
    ONE: tl.constexpr, OWN: tl.constexpr, SPARSE: tl.constexpr, SCALE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The gradient of the items, and their Adam update (Kingma and Ba, 2015; l2 is added to the gradient).

    ONE: the batch fits into one block of ROWS, which is then loaded only once.
    """
    steps = tl.load(step)
    rate_now = tl.load(rate) / (1 - tl.exp(steps * tl.log(beta1)))
    unbiased = 1 - tl.exp(steps * tl.log(beta2))
    row, column = tl.arange(0, ROWS), tl.arange(0, D)
    log = tl.load(logs + row, mask=row < batch, other=float("inf"))
    share = tl.load(shares + row, mask=row < batch, other=0.0)
    target = tl.load(targets + row, mask=row < batch, other=0) - 1
    h = load_block(sessions, row, batch, d, D)  # [ROWS, D]
    if HALF:
        h = h.to(tl.float16)
    stride = tl.num_programs(0) * ITEMS
    first_item = tl.program_id(0) * ITEMS
    next_x = load_block(table, first_item + tl.arange(0, ITEMS), items, d, D)
    for start in range(first_item, items, stride):
        item = start + tl.arange(0, ITEMS)
        there = (item[:, None] < items) & (column[None, :] < d)
        where = item[:, None].to(tl.int64) * d + column[None, :]
        x = next_x  # [ITEMS, D]
        # All loads, those of the next block too, are issued before the computation that does not need them.
        m = tl.load(first + where, mask=there, other=0.0)
        v = tl.load(second + where, mask=there, other=0.0)
        with_own = there & OWN
        if SPARSE:
            with_own = there & (tl.load(latest + item, mask=item < items, other=0.0) == steps)[:, None]
        own = tl.load(own_gradient + where, mask=with_own, other=0.0)
        next_x = load_block(table, item + stride, items, d, D)
        gradient = own + l2 * x + gradient_of_items(x, item, h, log, share, target, SCALE, HALF)
        if not ONE:
            for more in range(ROWS, batch, ROWS):
                others = more + row
                log2 = tl.load(logs + others, mask=others < batch, other=float("inf"))
                share2 = tl.load(shares + others, mask=others < batch, other=0.0)
                target2 = tl.load(targets + others, mask=others < batch, other=0) - 1
                h2 = load_block(sessions, others, batch, d, D)
                gradient += gradient_of_items(x, item, h2, log2, share2, target2, SCALE, HALF)
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient * gradient
        x -= rate_now * m / (tl.sqrt(v / unbiased) + epsilon)
        # Not read again in this step, so they should not take the cache of what is.
        tl.store(first + where, m, mask=there, cache_modifier=".cs")
        tl.store(second + where, v, mask=there, cache_modifier=".cs")
        tl.store(table + where, x, mask=there)
        if SPARSE:
            tl.store(own_gradient + where, tl.zeros_like(own), mask=with_own)


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
        sessions, table, best, total, mean, batch, items, d, wide, rows, ITEMS, precision() != "ieee", num_warps=8
    )
    launch(join_parts, batch)(
        sessions, table, targets, shares, best, total, mean, losses, logs, gradient, step, batch, parts, d, wide,
        triton.next_power_of_2(parts),
    )  # fmt: skip
    return Softmax(losses, logs, gradient)


def adam(
    table: Tensor, own_gradient: Tensor | None, state: dict[str, Tensor], options: dict[str, Any], items: int,
    sessions: Tensor, targets: Tensor, shares: Tensor, logs: Tensor, latest: Tensor | None = None,
) -> None:  # fmt: skip
    """One update of the table; `state` and `options` are torch.optim.Adam's, `own_gradient` is the encoder's share.

    With `latest` [items], the latest step in which each row had such a share, `own_gradient` is read only in the rows
    whose latest step is this one. It is then set to zero there, so that the next step need not clear the whole of it.
    """
    batch, d = sessions.shape
    beta1, beta2 = options["betas"]
    wide, rows = blocks(batch, d)
    programs = min(UPDATERS, triton.cdiv(items, UPDATED))
    launch(update_table, programs)(
        table, table if own_gradient is None else own_gradient, table if latest is None else latest,
        state["exp_avg"], state["exp_avg_sq"], sessions, logs, shares, targets, options["lr"], state["step"],
        options["weight_decay"], beta1, beta2, options["eps"], batch, items, d, wide, rows, UPDATED, batch <= rows,
        own_gradient is not None, latest is not None, SCALE, precision() != "ieee", num_warps=8, num_stages=1,
    )  # fmt: skip
