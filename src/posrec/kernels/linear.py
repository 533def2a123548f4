"""A linear layer whose backward pass is a single kernel.

    y = x W^T + b        x [T, in], W [out, in], b [out]
    dx = dy W,   dW = dy^T x,   db = the sum of dy's rows

The three are independent, and each alone is too small to occupy a large GPU. So some of the kernel's programs compute
tiles of dx, the others tiles of dW, and those at W's left edge db too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from posrec.kernels import may_round
from posrec.kernels.launch import launch

TILE, STEP = 32, 128  # a program computes [TILE, TILE] numbers, summing over STEP terms at a time


@triton.jit
def load_block(matrix, row, column, rows, columns: tl.constexpr):
    """Some rows and columns of a matrix; zeros outside of it."""
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    return tl.load(matrix + row[:, None] * columns + column[None, :], mask=inside, other=0.0)


@triton.jit
def product(a, b, HALF: tl.constexpr):
    if HALF:  # bfloat16, because gradients need its range
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def linear_backward_kernel(
    x, weight, dy, dx, dweight, dbias, rows, width: tl.constexpr, out: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(width, TILE)
    for_dx = tl.cdiv(rows, TILE) * across
    program = tl.program_id(0)
    term = tl.arange(0, STEP)
    column = (program % across) * TILE + tl.arange(0, TILE)
    tile = tl.zeros([TILE, TILE], tl.float32)
    # The next blocks are loaded while the product of these is computed.
    if program < for_dx:
        row = (program // across) * TILE + tl.arange(0, TILE)
        a = load_block(dy, row, term, rows, out)  # [TILE, STEP]
        b = load_block(weight, term, column, out, width)  # [STEP, TILE]
        for _ in range(0, out, STEP):
            term += STEP
            next_a = load_block(dy, row, term, rows, out)
            next_b = load_block(weight, term, column, out, width)
            tile += product(a, b, HALF)
            a, b = next_a, next_b
        inside = (row[:, None] < rows) & (column[None, :] < width)
        tl.store(dx + row[:, None] * width + column[None, :], tile, mask=inside)
    else:
        row = (program - for_dx) // across * TILE + tl.arange(0, TILE)  # of the weight
        summed = tl.zeros([TILE], tl.float32)
        up = load_block(dy, term, row, rows, out)  # [STEP, TILE]
        into = load_block(x, term, column, rows, width)  # [STEP, TILE]
        for _ in range(0, rows, STEP):
            term += STEP
            next_up = load_block(dy, term, row, rows, out)
            next_into = load_block(x, term, column, rows, width)
            tile += product(tl.trans(up), into, HALF)
            summed += tl.sum(up, 0)
            up, into = next_up, next_into
        inside = (row[:, None] < out) & (column[None, :] < width)
        tl.store(dweight + row[:, None] * width + column[None, :], tile, mask=inside)
        if program % across == 0:
            tl.store(dbias + row, summed, mask=row < out)


@torch.library.custom_op("posrec::linear_backward", mutates_args=())
def linear_backward(x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dW, db."""
    x, dy = x.contiguous(), dy.contiguous()
    (rows, width), out = x.shape, len(weight)
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), weight.new_empty(out)
    across = triton.cdiv(width, TILE)
    programs = (triton.cdiv(rows, TILE) + triton.cdiv(out, TILE)) * across
    launch(linear_backward_kernel, programs)(
        x, weight, dy, dx, dweight, dbias, rows, width, out, TILE, STEP, may_round(), num_stages=1
    )  # fmt: skip
    return dx, dweight, dbias


@linear_backward.register_fake
def _(x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(len(weight))


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.with_bias = bias is not None
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        dx, dweight, dbias = linear_backward(x, weight, dy)
        return dx, dweight, dbias if ctx.with_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in], weight [out, in], bias [out] or none -> [T, out]."""
    y: Tensor = Linear.apply(x, weight, bias)
    return y
