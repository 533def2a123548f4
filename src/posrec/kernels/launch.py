"""Kernels as operations of torch; launching a kernel, or only beginning to compile it.

Triton compiles a kernel at its first launch, so the kernels of a step would be compiled one after
the other. In the block of `only_compiled` nothing is launched: all kernels are compiled in threads
at the same time, while the caller goes on."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

is_launching = True


def launch(kernel: Any, *grid: int) -> Callable[..., None]:
    """`kernel[grid]`, to be called with the kernel's arguments."""
    return kernel[grid] if is_launching else partial(begin_to_compile, kernel)


@contextmanager
def only_compiled() -> Iterator[None]:
    """In the block, kernels are compiled instead of launched, and their results are undefined: they
    must not be used as indices. The block may end before the compilations do; a kernel that can't
    be compiled raises when it is launched.

    This holds for all threads, since autograd computes gradients in a thread of its own; no other
    thread may use a GPU meanwhile."""
    global is_launching
    is_launching = False
    try:
        yield
    finally:
        is_launching = True


def begin_to_compile(kernel: Any, *arguments: Any, **options: Any) -> None:
    threads(torch.cuda.current_device()).submit(
        kernel.warmup, *arguments, grid=(1,), **options
    )


@cache
def threads(device: int) -> ThreadPoolExecutor:
    """Each thread has a current device of its own."""
    return ThreadPoolExecutor(initializer=torch.cuda.set_device, initargs=(device,))


class TorchOperation:
    """`function` as the operation `name`.

    Unless autograd or torch.compile needs the operation, the function is called directly: at the
    first call of an operation torch imports its compiler, which takes two seconds."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.function = function
        self.known_to_torch = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self.known_to_torch.register_fake
        self.register_autograd = self.known_to_torch.register_autograd

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return self.known_to_torch(*arguments)
        return self.function(*arguments)


def operation(name: str) -> Callable[[Callable[..., Any]], TorchOperation]:
    return lambda function: TorchOperation(name, function)
