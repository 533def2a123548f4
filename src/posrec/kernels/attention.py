"""Attention inside each session, over packed rows: one kernel forward, one backward.

    A = softmax(Q K^T / sqrt(d_head)) V,  over the rows of the session

The rows of session b are `begins[b] .. begins[b + 1] - 1` of `rows [T, 3 d]`, which holds Q, K and V side by side, each
with its heads side by side. A program computes one head of one session, so its attention weights stay on the chip. Rows
after the last session are unused; their results are zeros.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels import block_of, launches, precision
from posrec.kernels.launch import launch
from posrec.kernels.operation import operation


@triton.jit
def load_heads(rows, row, column, of, inside, d: tl.constexpr, HEAD: tl.constexpr):
    return tl.load(rows + row[:, None] * (3 * d) + of * d + column[None, :], mask=inside, other=0.0)


@triton.jit
def attend(q, k, there, scale, causal, PRECISION: tl.constexpr, L: tl.constexpr):
    """Attention weights: the softmax over the session's rows, [L, L]."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    seen = there[None, :]
    if causal:
        place = tl.arange(0, L)
        seen = seen & (place[None, :] <= place[:, None])
    logits = tl.where(seen, logits, -float("inf"))
    # Unused rows get logits of 0, so that their softmax is not 0/0; their results are not stored.
    logits = tl.where(there[:, None], logits, 0.0)
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def kept(seed, session, head, dropout, L: tl.constexpr, LONG: tl.constexpr):
    """The factors of dropout; the same seed gives the same factors in the forward and the backward pass."""
    place = tl.arange(0, L)
    number = ((session * tl.num_programs(1) + head) * LONG + place[:, None]) * LONG + place[None, :]
    return (tl.rand(tl.load(seed), number) >= dropout).to(tl.float32) / (1 - dropout)


@triton.jit(do_not_specialize=["sessions", "capacity"])
def attention_kernel(
    rows, begins, seed, attended, sessions, capacity, scale, dropout, d: tl.constexpr, head_width: tl.constexpr,
    HEAD: tl.constexpr, ABOVE: tl.constexpr, L: tl.constexpr, LONG: tl.constexpr, CAUSAL: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    session, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(begins + session)
    place, column = tl.arange(0, L), tl.arange(0, HEAD)
    in_head = column[None, :] < head_width
    column = head * head_width + column
    if session == sessions:  # the unused rows
        for start in range(begin, capacity, L):
            row = start + place
            where = attended + row[:, None] * d + column[None, :]
            tl.store(where, tl.zeros([L, HEAD], tl.float32), mask=(row[:, None] < capacity) & in_head)
    else:
        count = tl.load(begins + session + 1) - begin
        if (count > ABOVE) & (count <= L):
            row, there = begin + place, place < count
            inside = there[:, None] & in_head
            q = load_heads(rows, row, column, 0, inside, d, HEAD)
            k = load_heads(rows, row, column, 1, inside, d, HEAD)
            v = load_heads(rows, row, column, 2, inside, d, HEAD)
            weights = attend(q, k, there, scale, CAUSAL, PRECISION, L)
            if DROP:
                weights = weights * kept(seed, session, head, dropout, L, LONG)
            result = tl.dot(weights, v, input_precision=PRECISION)
            tl.store(attended + row[:, None] * d + column[None, :], result, mask=inside)


@triton.jit(do_not_specialize=["sessions", "capacity"])
def attention_backward_kernel(
    rows, begins, seed, gradient, of_rows, sessions, capacity, scale, dropout, d: tl.constexpr,
    head_width: tl.constexpr, HEAD: tl.constexpr, ABOVE: tl.constexpr, L: tl.constexpr, LONG: tl.constexpr,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    session, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(begins + session)
    place, column = tl.arange(0, L), tl.arange(0, HEAD)
    in_head = column[None, :] < head_width
    column = head * head_width + column
    if session == sessions:
        for start in range(begin, capacity, L):
            row = start + place
            where = of_rows + row[:, None] * (3 * d) + column[None, :]
            for of in range(3):
                tl.store(where + of * d, tl.zeros([L, HEAD], tl.float32), mask=(row[:, None] < capacity) & in_head)
    else:
        count = tl.load(begins + session + 1) - begin
        if (count > ABOVE) & (count <= L):
            row, there = begin + place, place < count
            inside = there[:, None] & in_head
            q = load_heads(rows, row, column, 0, inside, d, HEAD)
            k = load_heads(rows, row, column, 1, inside, d, HEAD)
            v = load_heads(rows, row, column, 2, inside, d, HEAD)
            of_result = tl.load(gradient + row[:, None] * d + column[None, :], mask=inside, other=0.0)
            weights = attend(q, k, there, scale, CAUSAL, PRECISION, L)
            of_weights = tl.dot(of_result, tl.trans(v), input_precision=PRECISION)
            used = weights
            if DROP:
                keep = kept(seed, session, head, dropout, L, LONG)
                used, of_weights = weights * keep, of_weights * keep
            of_v = tl.dot(tl.trans(used), of_result, input_precision=PRECISION)
            of_logits = weights * (of_weights - tl.sum(of_weights * weights, 1)[:, None]) * scale
            of_q = tl.dot(of_logits, k, input_precision=PRECISION)
            of_k = tl.dot(tl.trans(of_logits), q, input_precision=PRECISION)
            where = of_rows + row[:, None] * (3 * d) + column[None, :]
            tl.store(where, of_q, mask=inside)
            tl.store(where + d, of_k, mask=inside)
            tl.store(where + 2 * d, of_v, mask=inside)


def sizes(rows: Tensor, heads: int) -> tuple[int, int, int]:
    """d, the width of a head, and the block size for that width."""
    d = rows.shape[1] // 3
    return d, d // heads, block_of(d // heads)


@operation("posrec::attention")
def attention(
    rows: Tensor, begins: Tensor, seed: Tensor, heads: int, longest: int, causal: bool, dropout: float
) -> Tensor:
    """rows [T, 3 d], begins [B + 1], an integer `seed`, sessions of at most `longest` rows -> [T, d]."""
    d, width, wide = sizes(rows, heads)
    attended = rows.new_empty(len(rows), d)
    sessions = len(begins) - 1
    for above, block, long, warps in launches(sessions, longest):
        launch(attention_kernel, sessions + 1, heads)(
            rows, begins, seed, attended, sessions, len(rows), width**-0.5, dropout, d, width, wide, above, block, long,
            causal, dropout > 0, precision(), num_warps=warps,
        )  # fmt: skip
    return attended


@attention.register_fake
def _(rows: Tensor, begins: Tensor, seed: Tensor, heads: int, longest: int, causal: bool, dropout: float) -> Tensor:
    return rows.new_empty(rows.shape[0], rows.shape[1] // 3)


@operation("posrec::attention_backward")
def attention_backward(
    rows: Tensor, begins: Tensor, seed: Tensor, gradient: Tensor, heads: int, longest: int, causal: bool, dropout: float
) -> Tensor:
    d, width, wide = sizes(rows, heads)
    of_rows = torch.empty_like(rows)
    sessions, gradient = len(begins) - 1, gradient.contiguous()
    for above, block, long, warps in launches(sessions, longest):
        launch(attention_backward_kernel, sessions + 1, heads)(
            rows, begins, seed, gradient, of_rows, sessions, len(rows), width**-0.5, dropout, d, width, wide, above,
            block, long, causal, dropout > 0, precision(), num_warps=warps,
        )  # fmt: skip
    return of_rows


@attention_backward.register_fake
def _(
    rows: Tensor, begins: Tensor, seed: Tensor, gradient: Tensor, heads: int, longest: int, causal: bool, dropout: float
) -> Tensor:
    return torch.empty_like(rows)


def keep(ctx, inputs, output) -> None:
    rows, begins, seed, *ctx.options = inputs
    ctx.save_for_backward(rows, begins, seed)


def backward(ctx, gradient: Tensor):
    return attention_backward(*ctx.saved_tensors, gradient, *ctx.options), None, None, None, None, None, None


attention.register_autograd(backward, setup_context=keep)
