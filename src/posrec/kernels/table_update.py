"""The gradient of the item table and its Adam, in kernels that never write the softmax's part of the gradient.

The scores are computed again, block by block (the equations are in `table.py`), and Adam is applied directly. What the
encoder adds to the gradient is read from memory. It is zero but for the items of the batch, so those may be updated
apart, `update_listed`, and all others before the encoder's gradient is known.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels import UPDATERS, may_round
from posrec.kernels.adam import adam_factors, adam_of
from posrec.kernels.launch import launch
from posrec.kernels.listed_rows import ListedRows
from posrec.kernels.table import LOG2E, blocks, load_block, product

UPDATED = 16  # items in a block of the update
SCALE = 32768.0  # brings factors of at most 1 into the middle of the range of half precision


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


@triton.jit(do_not_specialize=["begin", "end"])
def update_table(
    table, own_gradient, list_of_row, list_number, first, second, sessions, logs, shares, targets, rate, step, l2,
    beta1, beta2, epsilon, batch, begin, end, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    ITEMS: tl.constexpr, ONE: tl.constexpr, OWN: tl.constexpr, APART: tl.constexpr, SCALE: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """The gradient of the items from `begin` to `end`, and their Adam update.

    ONE: the batch fits into one block of ROWS, which is then loaded only once. OWN: the encoder's gradient is added.
    APART: items in the list are left as they are.
    """
    rate_now, root = adam_factors(rate, step, beta1, beta2)
    h, log, share, target = load_samples(sessions, logs, shares, targets, 0, batch, d, D, ROWS, HALF)
    column = tl.arange(0, D)
    stride = tl.num_programs(0) * ITEMS
    first_item = begin + tl.program_id(0) * ITEMS
    next_x = load_block(table, first_item + tl.arange(0, ITEMS), end, d, D)
    for start in range(first_item, end, stride):
        item = start + tl.arange(0, ITEMS)
        there = (item[:, None] < end) & (column[None, :] < d)
        where = item[:, None].to(tl.int64) * d + column[None, :]
        x = next_x  # [ITEMS, D]
        # All loads, those of the next block too, are issued before the computation that does not need them.
        m = tl.load(first + where, mask=there, other=0.0)
        v = tl.load(second + where, mask=there, other=0.0)
        if APART:
            listed = tl.load(list_of_row + item, mask=item < end, other=0) == tl.load(list_number)
        if OWN:
            own = tl.load(own_gradient + where, mask=there, other=0.0)
        next_x = load_block(table, item + stride, end, d, D)
        gradient = gradient_of_items(x, item, h, log, share, target, SCALE, HALF)
        if OWN:
            gradient += own
        if not ONE:
            gradient += gradient_of_other_samples(
                x, item, sessions, logs, shares, targets, batch, d, D, ROWS, SCALE, HALF
            )
        x, m, v = adam_of(x, m, v, gradient, rate_now, root, l2, beta1, beta2, epsilon)
        if APART:
            there = there & (listed == 0)[:, None]
        # Not read again in this step, so they should not take the cache of what is.
        tl.store(first + where, m, mask=there, cache_modifier=".cs")
        tl.store(second + where, v, mask=there, cache_modifier=".cs")
        tl.store(table + where, x, mask=there)


@triton.jit
def update_listed(
    table, own_gradient, listed, counted, first, second, sessions, logs, shares, targets, rate, step, l2, beta1,
    beta2, epsilon, batch, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
    ONE: tl.constexpr, SCALE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The same for the items in the list, with the encoder's gradient, which is set to zero."""
    count = tl.load(counted)
    place = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    if tl.program_id(0) * ITEMS < count:
        item = tl.load(listed + place, mask=place < count, other=0)
        column = tl.arange(0, D)
        there = (place < count)[:, None] & (column[None, :] < d)
        where = item[:, None].to(tl.int64) * d + column[None, :]
        x = tl.load(table + where, mask=there, other=0.0)
        m = tl.load(first + where, mask=there, other=0.0)
        v = tl.load(second + where, mask=there, other=0.0)
        gradient = tl.load(own_gradient + where, mask=there, other=0.0)
        tl.store(own_gradient + where, tl.zeros_like(x), mask=there)
        rate_now, root = adam_factors(rate, step, beta1, beta2)
        h, log, share, target = load_samples(sessions, logs, shares, targets, 0, batch, d, D, ROWS, HALF)
        gradient += gradient_of_items(x, item, h, log, share, target, SCALE, HALF)
        if not ONE:
            gradient += gradient_of_other_samples(
                x, item, sessions, logs, shares, targets, batch, d, D, ROWS, SCALE, HALF
            )
        x, m, v = adam_of(x, m, v, gradient, rate_now, root, l2, beta1, beta2, epsilon)
        tl.store(first + where, m, mask=there)
        tl.store(second + where, v, mask=there)
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
    begin: int, end: int, apart: ListedRows | None = None, programs: int = UPDATERS,
) -> None:  # fmt: skip
    """Update the table's rows from `begin` to `end`, but for those in the list `apart`. `state` and `options` are
    torch.optim.Adam's, `own_gradient` is the encoder's share of the gradient."""
    batch, d = known.sessions.shape
    wide, rows = blocks(batch, d)
    lists = (table, table) if apart is None else (apart.list_of_row, apart.number)
    is_half, has_own, has_list = may_round(), own_gradient is not None, apart is not None
    launch(update_table, min(programs, triton.cdiv(end - begin, UPDATED)))(
        table, table if own_gradient is None else own_gradient, *lists, *arguments(state, options, known), begin, end,
        d, wide, rows, UPDATED, batch <= rows, has_own, has_list, SCALE, is_half, num_warps=8, num_stages=1,
    )  # fmt: skip


def adam_of_listed(
    table: Tensor, own_gradient: Tensor, state: dict[str, Tensor], options: dict[str, Any], known: KnownSoftmax,
    listed: ListedRows,
) -> None:  # fmt: skip
    """Update the rows in the list; then their `own_gradient` is zero, so that the next step need not clear it."""
    batch, d = known.sessions.shape
    wide, rows = blocks(batch, d)
    launch(update_listed, triton.cdiv(len(listed.rows), UPDATED))(
        table, own_gradient, listed.rows, listed.count, *arguments(state, options, known), d, wide, rows, UPDATED,
        batch <= rows, SCALE, may_round(), num_warps=8, num_stages=1,
    )  # fmt: skip


def arguments(state: dict[str, Tensor], options: dict[str, Any], known: KnownSoftmax) -> tuple[Any, ...]:
    """What both updates read."""
    moments = (state["exp_avg"], state["exp_avg_sq"])
    samples = (known.sessions, known.logs, known.shares, known.targets)
    numbers = (options["weight_decay"], *options["betas"], options["eps"])
    return *moments, *samples, options["lr"], state["step"], *numbers, len(known.sessions)
