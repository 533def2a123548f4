"""Item vectors smoothed over a graph of items: X = E + w A E.

Row i of A has the entries `offsets[i] .. offsets[i + 1] - 1` of `columns` and `values`. A program
computes one row of X and has several rows of E under way at a time."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.launch import launch, operation
from posrec.kernels.limits import block_of

ENTRIES = 8  # rows of E that a program loads at once


@triton.jit
def smooth_kernel(
    table, offsets, columns, values, smoothed, weight, d: tl.constexpr, D: tl.constexpr,
    ENTRIES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, ENTRIES)
    column = tl.arange(0, D)
    in_width = column < d
    begin = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    vector = tl.load(table + row * d + column, mask=in_width, other=0.0)
    near = tl.zeros([D], tl.float32)
    for start in range(begin, end, ENTRIES):
        there = start + entry < end
        other = tl.load(columns + start + entry, mask=there, other=0)
        value = tl.load(values + start + entry, mask=there, other=0.0)
        inside = there[:, None] & in_width[None, :]
        entries = table + other[:, None] * d + column[None, :]  # [ENTRIES, D]
        x = tl.load(entries, mask=inside, other=0.0)
        near += tl.sum(value[:, None] * x, 0)
    tl.store(smoothed + row * d + column, vector + weight * near, mask=in_width)


@operation("posrec::smooth")
def smooth(
    table: Tensor, weight: float, offsets: Tensor, columns: Tensor, values: Tensor
) -> Tensor:
    """E [rows, d], offsets [rows + 1], columns and values of A's entries -> X [rows, d]."""
    table = table.contiguous()
    smoothed = torch.empty_like(table)
    rows, d = table.shape
    wide = block_of(d)
    # With one warp for each 128 columns a thread sums its own columns, and no sum crosses threads.
    warps = max(1, wide // 128)
    arguments = (table, offsets, columns, values, smoothed, weight, d, wide, ENTRIES)
    launch(smooth_kernel, rows)(*arguments, num_warps=warps)
    return smoothed


@smooth.register_fake
def _(table, weight, offsets, columns, values):
    return table.new_empty(table.shape)
