"""Which clicks of a long session a model reads. Servers of an exported run use it without torch."""

from typing import Any


def first_read(clicks: Any, longest: int, stride: int) -> Any:
    """The position of the first click that is read of a session of `clicks` clicks (a number, or a
    tensor of them): the earliest multiple of `stride` from which on there are at most `longest`
    clicks. With a stride of 1, the latest `longest` clicks are read.

    >>> [first_read(clicks, longest=10, stride=5) for clicks in (9, 10, 11, 15, 16)]
    [0, 0, 5, 5, 10]
    """
    beyond = (clicks - longest) * (clicks > longest)
    return -(-beyond // stride) * stride
