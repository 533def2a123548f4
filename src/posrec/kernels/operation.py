"""Kernels as operations of torch, which autograd and torch.compile know."""

from collections.abc import Callable
from typing import Any

import torch


class Operation:
    """`function` as the operation `name`.

    In inference mode, which needs neither autograd nor torch.compile, the function is called directly: at the first
    call of an operation torch imports its compiler, which takes two seconds.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.function = function
        self.known_to_torch = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self.known_to_torch.register_fake
        self.register_autograd = self.known_to_torch.register_autograd

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments) if torch.is_inference_mode_enabled() else self.known_to_torch(*arguments)


def operation(name: str) -> Callable[[Callable[..., Any]], Operation]:
    return lambda function: Operation(name, function)
