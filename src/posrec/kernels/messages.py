"""Messages along the edges of session graphs, over packed rows, both directions in one kernel.

    m_t = sum_{t'} A_in[t, t'] s_in[t']  ||  sum_{t'} A_out[t, t'] s_out[t']          Eq. (7)

`sent [T, 2 d]` holds the messages of nodes in both directions side by side; the weights [B, 2, L, L] are indexed by
slots, and `slot_of_row [T]` is the slot and session of a row (b L + slot). Session b has the rows
`begins[b] .. begins[b + 1] - 1`. The gradient is the same sum with the weights transposed, so one kernel computes both.
"""

import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.launch import launch
from posrec.kernels.limits import block_of, launches, precision
from posrec.kernels.operation import operation


@triton.jit(do_not_specialize=["sessions", "capacity"])
def messages_kernel(
    sent, weights, begins, slot_of_row, received, sessions, capacity, width, stride,
    d: tl.constexpr, D: tl.constexpr, ABOVE: tl.constexpr, L: tl.constexpr, TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    session, direction = tl.program_id(0), tl.program_id(1)
    begin = tl.load(begins + session)
    place, column = tl.arange(0, L), tl.arange(0, D)
    in_width = column[None, :] < d
    column = direction * d + column
    if session == sessions:  # the unused rows
        for start in range(begin, capacity, L):
            row = start + place
            where = received + row[:, None] * (2 * d) + column[None, :]
            tl.store(where, tl.zeros([L, D], tl.float32), mask=(row[:, None] < capacity) & in_width)
    else:
        count = tl.load(begins + session + 1) - begin
        if (count > ABOVE) & (count <= L):
            row, there = begin + place, place < count
            slot = tl.load(slot_of_row + row, mask=there, other=0) - session * width
            to, come = (slot[None, :], slot[:, None]) if TRANSPOSED else (slot[:, None], slot[None, :])
            both = there[:, None] & there[None, :]
            of_edge = ((session * 2 + direction) * width + to) * width + come
            a = tl.load(weights + of_edge, mask=both, other=0.0)  # [L, L]
            inside = there[:, None] & in_width
            s = tl.load(sent + row[:, None] * stride + column[None, :], mask=inside, other=0.0)  # [L, D]
            result = tl.dot(a, s, input_precision=PRECISION)
            tl.store(received + row[:, None] * (2 * d) + column[None, :], result, mask=inside)


@operation("posrec::messages")
def messages(sent: Tensor, weights: Tensor, begins: Tensor, slot_of_row: Tensor, transposed: bool = False) -> Tensor:
    """sent [T, 2 d], weights [B, 2, L, L] -> [T, 2 d]."""
    sent = sent if sent.stride(1) == 1 else sent.contiguous()  # `sent` may be a view of some columns of a tensor
    weights = weights.contiguous()
    received = sent.new_empty(sent.shape)
    sessions, longest, d = len(weights), weights.shape[-1], sent.shape[1] // 2
    wide = block_of(d)
    for above, block, _, warps in launches(sessions, longest):
        launch(messages_kernel, sessions + 1, 2)(
            sent, weights, begins, slot_of_row, received, sessions, len(sent), longest, sent.stride(0), d, wide, above,
            block, transposed, precision(), num_warps=warps,
        )  # fmt: skip
    return received


@messages.register_fake
def _(sent: Tensor, weights: Tensor, begins: Tensor, slot_of_row: Tensor, transposed: bool = False) -> Tensor:
    return sent.new_empty(sent.shape)


def keep(ctx, inputs, output) -> None:
    _, *kept, ctx.transposed = inputs
    ctx.save_for_backward(*kept)


def backward(ctx, gradient: Tensor):
    return messages(gradient, *ctx.saved_tensors, not ctx.transposed), None, None, None, None


messages.register_autograd(backward, setup_context=keep)
