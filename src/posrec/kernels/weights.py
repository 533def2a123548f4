"""What a step does with many small weights, each in one kernel: their gradients, their Adam, and copies that are packed
for `encoder.py`.

The gradients are sums over rows, dW = dy^T x and db = the sum of dy's rows. Each product alone is too small to occupy a
GPU. So every program computes one tile of one of them, `Product`; which one is a row of a table of numbers that is made
once. The other two kernels find their tensors likewise.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.adam import adam_factors, adam_of
from posrec.kernels.launch import launch

TILE, STEP = 32, 64  # a program computes [TILE, TILE] numbers, from STEP rows at a time
BLOCK = 1024  # numbers of a tensor that a program of Adam updates


@dataclass(frozen=True)
class Product:
    """The gradients of a weight and of its bias. Columns and places in the flat gradient are counted from 0."""

    pair: int  # 0 or 1: which of the two pairs of dy and x
    dy: int  # the first of dy's columns
    out: int  # how many
    x: int
    width: int  # 0: no weight, only the bias
    weight: int  # the place of its first number in the flat gradient
    stride: int  # between two rows of the weight
    bias: int  # likewise; -1: there is none


def tiles(products: list[Product], device: torch.device) -> Tensor:
    """[programs, 10] for each program: a product, and the row and column of its tile."""
    found = []
    for one in products:
        for row in range(0, one.out, TILE):
            for column in range(0, max(one.width, 1), TILE):
                found.append([*vars(one).values(), row, column])
    return torch.tensor(found, dtype=torch.int32, device=device)


@triton.jit
def gradients_kernel(
    tiles, dy0, x0, dy1, x1, count0, count1, flat, dy0_stride: tl.constexpr, x0_stride: tl.constexpr,
    dy1_stride: tl.constexpr, x1_stride: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 10
    first, out, first_x, width = tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3), tl.load(tile + 4)
    weight, stride, bias = tl.load(tile + 5), tl.load(tile + 6), tl.load(tile + 7)
    row = tl.load(tile + 8) + tl.arange(0, TILE)
    left = tl.load(tile + 9)
    column = left + tl.arange(0, TILE)
    if tl.load(tile) == 0:
        rows, dy, x, dy_stride, x_stride = tl.load(count0), dy0, x0, dy0_stride, x0_stride
    else:
        rows, dy, x, dy_stride, x_stride = tl.load(count1), dy1, x1, dy1_stride, x1_stride
    step = tl.arange(0, STEP)
    product, summed = tl.zeros([TILE, TILE], tl.float32), tl.zeros([TILE], tl.float32)
    dy += first + row[None, :]
    x += first_x + column[None, :]
    up = tl.load(dy + step[:, None] * dy_stride, mask=(step[:, None] < rows) & (row[None, :] < out), other=0.0)
    into = tl.load(x + step[:, None] * x_stride, mask=(step[:, None] < rows) & (column[None, :] < width), other=0.0)
    for start in range(0, rows, STEP):
        # The next blocks are loaded while the product of these is computed.
        there = (start + STEP + step)[:, None]
        next_up = tl.load(dy + there * dy_stride, mask=(there < rows) & (row[None, :] < out), other=0.0)
        next_into = tl.load(x + there * x_stride, mask=(there < rows) & (column[None, :] < width), other=0.0)
        product += tl.dot(tl.trans(up.to(tl.bfloat16)), into.to(tl.bfloat16))
        summed += tl.sum(up, 0)
        up, into = next_up, next_into
    inside = (row[:, None] < out) & (column[None, :] < width)
    tl.store(flat + weight + row[:, None] * stride + column[None, :], product, mask=inside)
    if (left == 0) & (bias >= 0):
        tl.store(flat + bias + row, summed, mask=row < out)


def gradients(
    tiles: Tensor, dy: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor], counts: tuple[Tensor, Tensor], flat: Tensor
) -> None:
    """Write all products into `flat`; `counts` are the rows of both pairs, each a tensor of one number."""
    launch(gradients_kernel, len(tiles))(
        tiles, dy[0], x[0], dy[1], x[1], *counts, flat, dy[0].stride(0), x[0].stride(0), dy[1].stride(0),
        x[1].stride(0), TILE, STEP, num_stages=1,
    )  # fmt: skip


@triton.jit
def adam_kernel(blocks, flat, rate, step, l2, beta1, beta2, epsilon, BLOCK: tl.constexpr):
    """Adam of one block of one tensor."""
    block = blocks + tl.program_id(0) * 7
    parameter = tl.load(block).to(tl.pointer_type(tl.float32))
    first = tl.load(block + 1).to(tl.pointer_type(tl.float32))
    second = tl.load(block + 2).to(tl.pointer_type(tl.float32))
    own_step = tl.load(block + 3).to(tl.pointer_type(tl.float32))
    gradient, start, end = flat + tl.load(block + 4), tl.load(block + 5), tl.load(block + 6)
    place = start + tl.arange(0, BLOCK)
    there = place < end
    p, m = tl.load(parameter + place, mask=there), tl.load(first + place, mask=there)
    v, g = tl.load(second + place, mask=there), tl.load(gradient + place, mask=there)
    rate_now, root = adam_factors(rate, step, beta1, beta2)
    p, m, v = adam_of(p, m, v, g, rate_now, root, l2, beta1, beta2, epsilon)
    tl.store(parameter + place, p, mask=there)
    tl.store(first + place, m, mask=there)
    tl.store(second + place, v, mask=there)
    if start == 0:
        tl.store(own_step, tl.load(step))


class ManyAdam:
    """Adam for `parameters`, whose gradients lie one after the other in `flat`. The state is torch.optim.Adam's."""

    def __init__(self, parameters: list[Tensor], flat: Tensor, optimizer: torch.optim.Optimizer) -> None:
        self.parameters, self.flat = parameters, flat
        blocks, begin = [], 0
        for parameter in parameters:
            state = optimizer.state[parameter]
            held = [parameter, state["exp_avg"], state["exp_avg_sq"], state["step"]]
            for start in range(0, parameter.numel(), BLOCK):
                blocks.append([*(one.data_ptr() for one in held), begin, start, parameter.numel()])
            begin += parameter.numel()
        self.blocks = torch.tensor(blocks, dtype=torch.int64, device=flat.device)

    def update(self, options: dict[str, Any], step: Tensor) -> None:
        """One update; `step` is the number of steps with this one, and every tensor's own count is set to it."""
        beta1, beta2 = options["betas"]
        launch(adam_kernel, len(self.blocks))(
            self.blocks, self.flat, options["lr"], step, options["weight_decay"], beta1, beta2, options["eps"], BLOCK
        )


@triton.jit
def pack_kernel(blocks, forward, backward, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Some rows of a block [d, d] of a weight, in half precision and transposed, and in bfloat16 as they are."""
    number = tl.program_id(0)
    block = tl.load(blocks + number * 2).to(tl.pointer_type(tl.float32))
    stride = tl.load(blocks + number * 2 + 1)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, D)[None, :]
    values = tl.load(block + row * stride + column, mask=(row < d) & (column < d), other=0.0)
    tl.store(forward + (number * D + column) * D + row, values.to(tl.float16))
    tl.store(backward + (number * D + row) * D + column, values.to(tl.bfloat16))


class PackedWeights:
    """The blocks [d, d] of weights, filled up to [wide, wide]; those for the forward pass are transposed."""

    def __init__(self, weights: list[Tensor], d: int, wide: int) -> None:
        self.d, self.wide = d, wide
        blocks = [
            [weight.data_ptr() + weight.element_size() * (row * weight.shape[1] + column), weight.shape[1]]
            for weight in weights
            for row in range(0, weight.shape[0], d)
            for column in range(0, weight.shape[1], d)
        ]
        self.blocks = torch.tensor(blocks, dtype=torch.int64, device=weights[0].device)
        self.forward = torch.empty(len(blocks), wide, wide, dtype=torch.float16, device=self.blocks.device)
        self.backward = torch.empty_like(self.forward, dtype=torch.bfloat16)

    def update(self) -> None:
        """Copy the weights as they are now."""
        launch(pack_kernel, len(self.blocks), self.wide // 16)(
            self.blocks, self.forward, self.backward, self.d, self.wide, 16
        )
