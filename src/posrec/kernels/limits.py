"""What the kernels support: types, sizes and precisions, and the blocks in which they compute."""

import torch
from torch import Tensor

# The attention of a session must fit into a multiprocessor's memory: at most this many clicks, and
# numbers in one of the blocks of queries, keys and values.
LONGEST = 128
LARGEST_BLOCK = 64 * 128
SHORT = 16  # rows of most sessions, and of the smallest block that the matrix units multiply
MANY_SESSIONS = 256  # from this number on, short sessions have a launch of their own


def supports(x: Tensor) -> bool:
    return (
        x.is_cuda and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
    )


def attention_fits(longest: int, head: int) -> bool:
    """Whether the attention of a session with `longest` rows, in heads of width `head`, fits into a
    multiprocessor's memory."""
    block = block_of(longest) * block_of(head)
    # Products that are not rounded take twice as much memory.
    largest = LARGEST_BLOCK if may_round() else LARGEST_BLOCK // 2
    return longest <= LONGEST and block <= largest


def may_round() -> bool:
    """Whether the factors of products may be rounded to the ten bits of TF32."""
    return torch.get_float32_matmul_precision() != "highest"


def precision() -> str:
    """The precision of products inside a kernel, by Triton's name. Three products of rounded parts
    have nearly all bits of single precision, which itself takes tens of seconds to compile."""
    return "tf32" if may_round() else "tf32x3"


def block_of(size: int) -> int:
    """The size of a block for `size` rows or columns: a power of two that the matrix units
    multiply."""
    return max(SHORT, 1 << (size - 1).bit_length())


def launches(sessions: int, longest: int) -> list[tuple[int, int, int, int]]:
    """How to launch a kernel that computes a session in one block of rows: `(above, block, largest
    block of all launches, warps)`, each for the sessions of more than `above` and at most `block`
    rows.

    A block for the longest session is mostly empty, and takes so much memory that few programs run
    at a time. For few sessions a second launch takes longer than it saves.

    >>> launches(1000, 50)
    [(0, 16, 64, 2), (16, 64, 64, 4)]
    >>> launches(100, 50)
    [(0, 64, 64, 4)]
    """
    block = block_of(longest)
    if sessions < MANY_SESSIONS or block == SHORT:
        return [(0, block, block, 4)]
    return [(0, SHORT, block, 2), (SHORT, block, block, 4)]
