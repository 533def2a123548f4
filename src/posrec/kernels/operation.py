"""Kernels as operations of torch, which autograd and torch.compile know."""

from collections.abc import Callable
from typing import Any

import torch


class Operation:
    """`function` as the operation `name`.

    Where neither autograd nor torch.compile needs it, the function is called directly: at the first call of an
    operation torch imports its compiler, which takes two seconds.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.function = function
        self.known_to_torch = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self.known_to_torch.register_fake
        self.register_autograd = self.known_to_torch.register_autograd

    def __call__(self, *arguments: Any) -> Any:
        needed = torch.compiler.is_compiling() or not torch.is_inference_mode_enabled()
        return self.known_to_torch(*arguments) if needed else self.function(*arguments)


def operation(name: str) -> Callable[[Callable[..., Any]], Operation]:
    return lambda function: Operation(name, function)
