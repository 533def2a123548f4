"""A positional encoding as the sum of a part by the position from the front and one from the back.

    P[pos] of length l = F[pos] + B[l - pos - 1]          F[a] = P[a] of length a + 1;    B[0] = 0

A model that reads a session once (`models/posrecplus.py`) adds F to the input of a click, and B
where a later click reads it. `rpe` has neither part; it biases the attention by the distance.
`2dspe` and `2dlpe` depend on the length, which is not known in the middle of a session, and can't
be split."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import attention_bias, device_of


class SplitEncoding(NamedTuple):
    forward: Tensor  # [max_length, d] F
    backward: Tensor  # [max_length, d] B
    # [heads, max_length] added to the attention's logits, by distance
    bias: Tensor | None


def split(encoding: nn.Module, max_length: int) -> SplitEncoding:
    """The two parts, with gradients, of an encoding that `require_split` accepts.

    >>> from posrec.encodings.schemes import make_encoding
    >>> parts = split(make_encoding("dpe", d=8, max_length=5), 5)
    >>> bool((parts.backward[:, :4] == 0).all())  # the first half of dpe counts from the front
    True
    """
    position = torch.arange(max_length, device=device_of(encoding))
    # A session for each position, [max_length, 1], with that click at its end or at its front.
    column = position[:, None]
    zero = torch.zeros_like(column)
    at_the_end = encoding(column, zero, position + 1)[:, 0]
    at_the_front = encoding(zero, column, position + 1)[:, 0]
    # One session of all positions.
    row = position[None]
    bias = attention_bias(encoding, row, row.flip(1), row[:, -1] + 1)
    if bias is not None:
        bias = bias[0, :, -1].flip(-1)  # of the last click, by distance
    return SplitEncoding(at_the_end, at_the_front - at_the_front[:1], bias)


@torch.no_grad()
def require_split(encoding: nn.Module, name: str, max_length: int) -> None:
    """Raise a ValueError if the encoding is not the sum of its two parts everywhere."""
    forward, backward, by_distance = split(encoding, max_length)
    for length in range(1, max_length + 1):
        position = torch.arange(length, device=forward.device)
        row = position[None]
        session = (row, row.flip(1), row[:, -1] + 1)
        expected = forward[:length] + backward[:length].flip(0)
        is_sum = close(encoding(*session)[0], expected)
        bias = attention_bias(encoding, *session)
        if bias is not None and by_distance is not None:
            distance = position[:, None] - position
            causal = by_distance[:, distance.clamp(min=0)]
            expected = torch.where(distance >= 0, causal, bias[0])
            is_sum = is_sum and close(bias[0], expected)
        if not is_sum:
            raise ValueError(
                f"encoding={name} depends on the session's length, or on both places together; "
                "posrec-plus reads a session once and can't use it: choose another, or --model "
                "posrec"
            )


def close(values: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-5 * max(1.0, float(expected.abs().max()))
    return torch.allclose(values, expected, rtol=1e-4, atol=tolerance)
