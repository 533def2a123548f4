"""A positional encoding as the sum of a part by the position from the front and one from the back.

    P[pos] of length l = F[pos] + B[l - pos - 1]          F[a] = P[a] of length a + 1;    B[0] = 0

A model that reads a session once (`models/posrecplus.py`) adds F to the input of a click, and B
where a later click reads it. `rpe` has neither part; it biases the attention by the distance.
`2dspe` and `2dlpe` depend on the length, which is not known in the middle of a session, and can't
be split.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import attention_bias


class SplitEncoding(NamedTuple):
    forward: Tensor  # [max_length, d] F
    backward: Tensor  # [max_length, d] B
    bias: (
        Tensor | None
    )  # [heads, max_length] added to the attention's logits, by distance


def split(encoding: nn.Module, max_length: int) -> SplitEncoding:
    """The two parts, with gradients. Correct only for encodings that `require_split` accepts.

    >>> from posrec.encodings.schemes import make_encoding
    >>> parts = split(make_encoding("dpe", d=8, max_length=5), 5)
    >>> bool((parts.backward[:, :4] == 0).all())  # the first half of dpe counts from the front
    True
    """
    device = next(
        (one.device for one in [*encoding.parameters(), *encoding.buffers()]),
        torch.device("cpu"),
    )
    place = torch.arange(max_length, device=device)[
        :, None
    ]  # [max_length, 1]: a session for each place
    zero = torch.zeros_like(place)
    at_the_end = encoding(place, zero, place[:, 0] + 1)[:, 0]
    at_the_front = encoding(zero, place, place[:, 0] + 1)[:, 0]
    whole = place.T  # a session of all places
    bias = attention_bias(encoding, whole, place[-1] - whole, place[-1] + 1)
    by_distance = (
        None if bias is None else bias[0, :, -1].flip(-1)
    )  # what the last click adds, from the nearest on
    return SplitEncoding(at_the_end, at_the_front - at_the_front[:1], by_distance)


@torch.no_grad()
def require_split(encoding: nn.Module, name: str, max_length: int) -> None:
    """Raise a ValueError if the encoding is not the sum of its two parts everywhere."""
    forward, backward, by_distance = split(encoding, max_length)
    for length in range(1, max_length + 1):
        place = torch.arange(length, device=forward.device)
        there = (
            place[None],
            length - 1 - place[None],
            torch.tensor([length], device=forward.device),
        )
        is_sum = close(
            encoding(*there)[0], forward[:length] + backward[:length].flip(0)
        )
        bias = attention_bias(encoding, *there)
        if bias is not None and by_distance is not None:
            distance = place[:, None] - place
            expected = torch.where(
                distance >= 0, by_distance[:, distance.clamp(min=0)], bias[0]
            )
            is_sum = is_sum and close(bias[0], expected)
        if not is_sum:
            raise ValueError(
                f"encoding={name} depends on the session's length, or on both places together; posrec-plus reads a "
                "session once and can't use it: choose another, or --model posrec"
            )


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(
        one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max()))
    )
