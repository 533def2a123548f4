"""Attention inside each session, over packed rows: one kernel forward, one backward.

    A = softmax(Q K^T / sqrt(d_head) + near) V,  over the rows of the session

The rows of session b are `begins[b] .. begins[b + 1] - 1` of `queries [T, A d]`, in which A vectors
ask at every row, and of `keys_values [T, 2 d]`, K and V side by side. `near [T, A, heads, W]`, if
it is given, is what the distance k adds to the logits where row t reads row t - k; then the
attention is causal, and its weights are returned by distance too."""

import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.launch import launch, operation
from posrec.kernels.limits import MANY_SESSIONS, block_of, launches, precision


@triton.jit
def attend(
    q, k, near, by_distance, there, scale, CAUSAL: tl.constexpr, NEAR: tl.constexpr,
    PRECISION: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The attention weights of a session's rows, [L, L]. `by_distance` [L, L] is where `near` of
    each pair of rows is."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    seen = there[None, :]
    if CAUSAL:
        position = tl.arange(0, L)
        seen = seen & (position[None, :] <= position[:, None])
    if NEAR:
        logits += tl.load(near + by_distance, mask=seen & there[:, None], other=0.0)
    logits = tl.where(seen, logits, -float("inf"))
    # Unused rows get logits of 0, so that their softmax is not 0/0; their results are not stored.
    logits = tl.where(there[:, None], logits, 0.0)
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def distances(row, asker, head, ASKERS: tl.constexpr, heads, width, L: tl.constexpr):
    """[L, L] the index of each pair of rows, the second not after the first, in an array
    [T, A, heads, width] by distance."""
    position = tl.arange(0, L)
    return (
        (((row * ASKERS + asker) * heads + head) * width)[:, None]
        + position[:, None]
        - position[None, :]
    )


@triton.jit
def dropout_factors(
    seed, session, asker, head, dropout, ASKERS: tl.constexpr, L: tl.constexpr, LONG: tl.constexpr
):  # fmt: skip
    """[L, L], the same in the forward and the backward pass if the seed is the same."""
    position = tl.arange(0, L)
    number = (
        ((session * ASKERS + asker) * tl.num_programs(1) + head) * LONG
        + position[:, None]
    ) * LONG + position[None, :]
    return (tl.rand(tl.load(seed), number) >= dropout).to(tl.float32) / (1 - dropout)


@triton.jit(do_not_specialize=["sessions", "capacity", "width"])
def attention_kernel(
    queries, keys_values, near, begins, seed, attended, by_distance, sessions, capacity,
    query_stride, key_stride, scale, dropout, width, ASKERS: tl.constexpr, d: tl.constexpr,
    head_width: tl.constexpr, HEAD: tl.constexpr, ABOVE: tl.constexpr, L: tl.constexpr,
    LONG: tl.constexpr, CAUSAL: tl.constexpr, NEAR: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A program computes one head of one session; the last ones fill the unused rows with 0."""
    session = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    begin = tl.load(begins + session)
    position = tl.arange(0, L)
    column = tl.arange(0, HEAD)
    in_head = column[None, :] < head_width
    column = head * head_width + column
    if session == sessions:  # the unused rows
        nothing = tl.zeros([L, HEAD], tl.float32)
        for start in range(begin, capacity, L):
            row = start + position
            unused = (row[:, None] < capacity) & in_head
            for asker in tl.static_range(ASKERS):
                result = (row[:, None] * ASKERS + asker) * d + column[None, :]
                tl.store(attended + result, nothing, mask=unused)
    else:
        count = tl.load(begins + session + 1) - begin
        if (count > ABOVE) & (count <= L):
            row = begin + position
            there = position < count
            inside = there[:, None] & in_head
            key_of_row = keys_values + row[:, None] * key_stride + column[None, :]
            k = tl.load(key_of_row, mask=inside, other=0.0)
            v = tl.load(key_of_row + d, mask=inside, other=0.0)
            for asker in tl.static_range(ASKERS):
                asking = row[:, None] * query_stride + asker * d + column[None, :]
                q = tl.load(queries + asking, mask=inside, other=0.0)
                pairs = distances(row, asker, head, ASKERS, heads, width, L)
                weights = attend(
                    q, k, near, pairs, there, scale, CAUSAL, NEAR, PRECISION, L
                )
                if DROP:
                    weights = weights * dropout_factors(
                        seed, session, asker, head, dropout, ASKERS, L, LONG
                    )
                if NEAR:
                    earlier = (position[None, :] <= position[:, None]) & there[:, None]
                    tl.store(by_distance + pairs, weights, mask=earlier)
                result = (row[:, None] * ASKERS + asker) * d + column[None, :]
                sums = tl.dot(weights, v, input_precision=PRECISION)
                tl.store(attended + result, sums, mask=inside)


@triton.jit(do_not_specialize=["sessions", "capacity", "width"])
def attention_backward_kernel(
    queries, keys_values, near, begins, seed, gradient, grad_distances, grad_queries,
    grad_keys_values, grad_near, sessions, capacity, query_stride, key_stride, scale, dropout,
    width, ASKERS: tl.constexpr, d: tl.constexpr, head_width: tl.constexpr, HEAD: tl.constexpr,
    ABOVE: tl.constexpr, L: tl.constexpr, LONG: tl.constexpr, CAUSAL: tl.constexpr,
    NEAR: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    session = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    begin = tl.load(begins + session)
    position = tl.arange(0, L)
    column = tl.arange(0, HEAD)
    in_head = column[None, :] < head_width
    column = head * head_width + column
    if session == sessions:
        nothing = tl.zeros([L, HEAD], tl.float32)
        for start in range(begin, capacity, L):
            row = start + position
            unused = (row[:, None] < capacity) & in_head
            for asker in tl.static_range(ASKERS):
                result = (row[:, None] * ASKERS + asker) * d + column[None, :]
                tl.store(grad_queries + result, nothing, mask=unused)
            where = grad_keys_values + row[:, None] * (2 * d) + column[None, :]
            tl.store(where, nothing, mask=unused)
            tl.store(where + d, nothing, mask=unused)
    else:
        count = tl.load(begins + session + 1) - begin
        if (count > ABOVE) & (count <= L):
            row = begin + position
            there = position < count
            inside = there[:, None] & in_head
            key_of_row = keys_values + row[:, None] * key_stride + column[None, :]
            k = tl.load(key_of_row, mask=inside, other=0.0)
            v = tl.load(key_of_row + d, mask=inside, other=0.0)
            grad_k = tl.zeros([L, HEAD], tl.float32)
            grad_v = tl.zeros([L, HEAD], tl.float32)
            earlier = (position[None, :] <= position[:, None]) & there[:, None]
            for asker in tl.static_range(ASKERS):
                asking = row[:, None] * query_stride + asker * d + column[None, :]
                q = tl.load(queries + asking, mask=inside, other=0.0)
                result = (row[:, None] * ASKERS + asker) * d + column[None, :]
                grad_result = tl.load(gradient + result, mask=inside, other=0.0)
                pairs = distances(row, asker, head, ASKERS, heads, width, L)
                weights = attend(
                    q, k, near, pairs, there, scale, CAUSAL, NEAR, PRECISION, L
                )
                grad_weights = tl.dot(
                    grad_result, tl.trans(v), input_precision=PRECISION
                )
                if NEAR:
                    grad_weights += tl.load(
                        grad_distances + pairs, mask=earlier, other=0.0
                    )
                used = weights
                if DROP:
                    factors = dropout_factors(
                        seed, session, asker, head, dropout, ASKERS, L, LONG
                    )
                    used = weights * factors
                    grad_weights = grad_weights * factors
                grad_v += tl.dot(tl.trans(used), grad_result, input_precision=PRECISION)
                grad_logits = weights * (
                    grad_weights - tl.sum(grad_weights * weights, 1)[:, None]
                )
                if NEAR:
                    tl.store(grad_near + pairs, grad_logits, mask=earlier)
                grad_logits = grad_logits * scale
                grad_q = tl.dot(grad_logits, k, input_precision=PRECISION)
                grad_k += tl.dot(tl.trans(grad_logits), q, input_precision=PRECISION)
                tl.store(grad_queries + result, grad_q, mask=inside)
            where = grad_keys_values + row[:, None] * (2 * d) + column[None, :]
            tl.store(where, grad_k, mask=inside)
            tl.store(where + d, grad_v, mask=inside)


def sizes(
    queries: Tensor, keys_values: Tensor, heads: int
) -> tuple[int, int, int, int]:
    """A, d, the width of a head, and the block size for that width."""
    d = keys_values.shape[1] // 2
    return queries.shape[1] // d, d, d // heads, block_of(d // heads)


def plan(
    sessions: int, longest: int, near: Tensor | None
) -> list[tuple[int, int, int, int]]:
    """The launches; with `near` the same for any number of sessions, so that ranking compiles no
    other kernels."""
    return launches(sessions if near is None else max(sessions, MANY_SESSIONS), longest)


def with_plain_rows(x: Tensor) -> Tensor:
    """A view of some columns is read as it is."""
    return x if x.stride(1) == 1 else x.contiguous()


@operation("posrec::attention")
def attention(
    queries: Tensor, keys_values: Tensor, near: Tensor | None, begins: Tensor, seed: Tensor,
    heads: int, longest: int, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A [T, A d], and the weights by distance [T, A, heads, W], 0 at distances without a row, or
    empty without `near`. `seed` is an integer; no session has more than `longest` rows."""
    askers, d, width, wide = sizes(queries, keys_values, heads)
    queries = with_plain_rows(queries)
    keys_values = with_plain_rows(keys_values)
    attended = queries.new_empty(len(queries), askers * d)
    window = 0 if near is None else near.shape[3]
    by_distance = queries.new_zeros(len(queries), askers, heads, window)
    sessions = len(begins) - 1
    by_pair = attended if near is None else near.contiguous()
    for above, block, long, warps in plan(sessions, longest, near):
        launch(attention_kernel, sessions + 1, heads)(
            queries, keys_values, by_pair, begins, seed, attended, by_distance, sessions,
            len(queries), queries.stride(0), keys_values.stride(0), width**-0.5, dropout, window,
            askers, d, width, wide, above, block, long, causal, near is not None, dropout > 0,
            precision(), num_warps=warps,
        )  # fmt: skip
    return attended, by_distance


@attention.register_fake
def _(queries, keys_values, near, begins, seed, heads, longest, causal, dropout):
    askers = queries.shape[1] * 2 // keys_values.shape[1]
    weights = (queries.shape[0], askers, heads, 0 if near is None else near.shape[3])
    return queries.new_empty(queries.shape), queries.new_empty(weights)


@operation("posrec::attention_backward")
def attention_backward(
    queries: Tensor, keys_values: Tensor, near: Tensor | None, begins: Tensor, seed: Tensor,
    gradient: Tensor, grad_distances: Tensor, heads: int, longest: int, causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    askers, d, width, wide = sizes(queries, keys_values, heads)
    queries = with_plain_rows(queries)
    keys_values = with_plain_rows(keys_values)
    grad_queries = queries.new_empty(queries.shape)
    grad_keys_values = keys_values.new_empty(keys_values.shape)
    grad_near = grad_distances.new_zeros(grad_distances.shape)
    sessions = len(begins) - 1
    gradient = gradient.contiguous()
    grad_distances = grad_distances.contiguous()
    by_pair = gradient if near is None else near.contiguous()
    for above, block, long, warps in plan(sessions, longest, near):
        launch(attention_backward_kernel, sessions + 1, heads)(
            queries, keys_values, by_pair, begins, seed, gradient, grad_distances, grad_queries,
            grad_keys_values, grad_near, sessions, len(queries), queries.stride(0),
            keys_values.stride(0), width**-0.5, dropout, grad_near.shape[3], askers, d, width, wide,
            above, block, long, causal, near is not None, dropout > 0, precision(), num_warps=warps,
        )  # fmt: skip
    return grad_queries, grad_keys_values, grad_near


@attention_backward.register_fake
def _(queries, keys_values, near, begins, seed, gradient, grad_distances, *options):
    return (
        queries.new_empty(queries.shape),
        keys_values.new_empty(keys_values.shape),
        grad_distances.new_empty(grad_distances.shape),
    )


def save_inputs(ctx, inputs, output) -> None:
    queries, keys_values, near, begins, seed, *ctx.options = inputs
    ctx.has_near = near is not None
    ctx.save_for_backward(queries, keys_values, near, begins, seed)


def backward(ctx, gradient: Tensor, grad_distances: Tensor):
    grad_queries, grad_keys_values, grad_near = attention_backward(
        *ctx.saved_tensors, gradient, grad_distances, *ctx.options
    )
    if not ctx.has_near:
        grad_near = None
    without_gradient = (None,) * 6  # begins, seed and the options
    return grad_queries, grad_keys_values, grad_near, *without_gradient


attention.register_autograd(backward, setup_context=save_inputs)
