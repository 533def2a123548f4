"""The gradient of the item table and its Adam, in kernels that never write the softmax's part of the gradient.

The scores are computed again, block by block (the equations are in `table.py`), and Adam is applied directly. What the
encoder adds to the gradient is read from memory.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.launch import launch
from posrec.kernels.limits import may_round
from posrec.kernels.table import LOG2E, blocks, load_block, product

UPDATED = 16  # items in a block of the update
UPDATERS = 264  # programs: two for each multiprocessor of a large GPU
SCALE = 32768.0  # brings factors of at most 1 into the middle of the range of half precision


@triton.jit
def adam_factors(rate, step, beta1, beta2):
    """The rate divided by the first moment's bias, and what the root of the second is multiplied by."""
    steps = tl.load(step)
    return tl.load(rate) / (1 - tl.exp(steps * tl.log(beta1))), 1 / tl.sqrt(1 - tl.exp(steps * tl.log(beta2)))


@triton.jit
def adam_of(x, m, v, gradient, rate, root, l2, beta1, beta2, epsilon):
    """Adam (Kingma and Ba, 2015); l2 is added to the gradient."""
    gradient += l2 * x
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient * gradient
    divisor = tl.sqrt(v) * root + epsilon
    return x - rate * m * tl.rsqrt(divisor * divisor), m, v  # quicker than a division


@triton.jit
def gradient_of_items(x, item, h, log, share, target, SCALE: tl.constexpr, HALF: tl.constexpr):
    """sum_b w_b (p_bi - [i is b's target]) h_b of a block of items, [ITEMS, D]."""
    probability = tl.exp2(product(x, tl.trans(h), HALF) * LOG2E - log[None, :])  # [ITEMS, ROWS]
    difference = tl.where(item[:, None] == target[None, :], probability - 1, probability)
    gradient = product(difference * (share * SCALE)[None, :], h, HALF) * (1 / SCALE)
    # The threads hold a product in another order than what they load. Without this step, which moves nothing between
    # columns, the compiler would bring the item, both moments and their new values into that order and back.
    column = tl.zeros_like(gradient).to(tl.int32) + tl.arange(0, h.shape[1])[None, :]
    return tl.gather(gradient, column, 1)


@triton.jit
def load_samples(
    sessions, logs, shares, targets, first, batch, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Vectors, log-sums to the base of 2, weights and target rows of up to ROWS samples."""
    row = first + tl.arange(0, ROWS)
    log = tl.load(logs + row, mask=row < batch, other=float("inf")) * LOG2E
    share = tl.load(shares + row, mask=row < batch, other=0.0)
    target = tl.load(targets + row, mask=row < batch, other=0).to(tl.int32) - 1
    h = load_block(sessions, row, batch, d, D)  # [ROWS, D]
    if HALF:
        h = h.to(tl.float16)
    return h, log, share, target


@triton.jit
def gradient_of_other_samples(
    x, item, sessions, logs, shares, targets, batch, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    SCALE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """`gradient_of_items` of the samples after the first ROWS."""
    gradient = tl.zeros_like(x)
    for first in range(ROWS, batch, ROWS):
        h, log, share, target = load_samples(sessions, logs, shares, targets, first, batch, d, D, ROWS, HALF)
        gradient += gradient_of_items(x, item, h, log, share, target, SCALE, HALF)
    return gradient


@triton.jit
def update_table(
    table, own_gradient, first, second, sessions, logs, shares, targets, rate, step, l2, beta1, beta2, epsilon, batch,
    items, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr, ONE: tl.constexpr,
    OWN: tl.constexpr, SCALE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The gradient of the table's first `items` rows, and their Adam update.

    ONE: the batch fits into one block of ROWS, which is then loaded only once. OWN: the encoder's gradient is added.
    """
    rate_now, root = adam_factors(rate, step, beta1, beta2)
    h, log, share, target = load_samples(sessions, logs, shares, targets, 0, batch, d, D, ROWS, HALF)
    column = tl.arange(0, D)
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
        if OWN:
            own = tl.load(own_gradient + where, mask=there, other=0.0)
        next_x = load_block(table, item + stride, items, d, D)
        gradient = gradient_of_items(x, item, h, log, share, target, SCALE, HALF)
        if OWN:
            gradient += own
        if not ONE:
            gradient += gradient_of_other_samples(
                x, item, sessions, logs, shares, targets, batch, d, D, ROWS, SCALE, HALF
            )
        x, m, v = adam_of(x, m, v, gradient, rate_now, root, l2, beta1, beta2, epsilon)
        # Not read again in this step, so they should not take the cache of what is.
        tl.store(first + where, m, mask=there, cache_modifier=".cs")
        tl.store(second + where, v, mask=there, cache_modifier=".cs")
        tl.store(table + where, x, mask=there)


@dataclass(frozen=True)
class KnownSoftmax:
    """What the table's gradient depends on, besides the table."""

    sessions: Tensor  # [B, d]
    targets: Tensor  # [B]
    shares: Tensor  # [B]
    logs: Tensor  # [B]


def adam(
    table: Tensor, own_gradient: Tensor | None, state: dict[str, Tensor], options: dict[str, Any], known: KnownSoftmax,
    items: int,
) -> None:  # fmt: skip
    """Update the table's first `items` rows. `state` and `options` are torch.optim.Adam's, `own_gradient` is the
    encoder's share of the gradient."""
    batch, d = known.sessions.shape
    wide, rows = blocks(batch, d)
    launch(update_table, min(UPDATERS, triton.cdiv(items, UPDATED)))(
        table, table if own_gradient is None else own_gradient, state["exp_avg"], state["exp_avg_sq"], known.sessions,
        known.logs, known.shares, known.targets, options["lr"], state["step"], options["weight_decay"],
        *options["betas"], options["eps"], batch, items, d, wide, rows, UPDATED, batch <= rows,
        own_gradient is not None, SCALE, may_round(), num_warps=8, num_stages=1,
    )  # fmt: skip
