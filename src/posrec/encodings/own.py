"""Positional encodings of a user's own: as a module of a model, and as a value of the setting `encoding`."""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn


class OwnScheme(nn.Module):
    """A user's function or module, as a module that is moved, saved and printed with the model that contains it.

    The negative backward positions of padding become 0: 1 / (1 + backward) would be infinite, and its gradient not a
    number even where padding is masked.
    """

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        if hasattr(function, "attention_bias"):
            self.attention_bias = function.attention_bias

    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.function(forward, backward.clamp(min=0), length)


class OwnEncoding(str):
    """The name of a user's own encoding, together with the encoding: in a model's config it is text like other names.

    >>> nearness = OwnEncoding.of("my_encoding.py:nearness", lambda forward, backward, length: 1 / (1 + backward))
    >>> nearness == "my_encoding.py:nearness", nearness.scheme is not None
    (True, True)
    """

    scheme: Any  # a function, a module or a module class

    @classmethod
    def of(cls, name: str, scheme: Any) -> Self:
        own = cls(name)
        own.scheme = scheme
        return own
