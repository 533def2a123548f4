"""Launching a kernel, or only compiling it.

Triton compiles a kernel at its first launch, and the launches of a step follow one another, so its kernels would be
compiled one after the other. In `only_compiled` nothing is launched, and all kernels are compiled at the same time.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

begun: list[Future[Any]] | None = None  # the compilations of the block of `only_compiled`


def launch(kernel: Any, *grid: int) -> Callable[..., None]:
    """`kernel[grid]`, to be called with the kernel's arguments."""
    return kernel[grid] if begun is None else partial(begin_to_compile, begun, kernel)


@contextmanager
def only_compiled(in_background: bool = False) -> Iterator[None]:
    """In the block, kernels that `launch` would run are compiled instead, and their results are undefined: they must
    not be used as indices. With `in_background` the block ends before the compilations do.

    This holds for all threads, since autograd computes gradients in a thread of its own; no other thread may use a GPU
    meanwhile.
    """
    global begun
    before, compilations = begun, list[Future[Any]]()
    begun = compilations
    try:
        yield
    finally:
        begun = before
        if not in_background:
            wait(compilations)  # a kernel that can't be compiled raises when it is launched


def begin_to_compile(into: list[Future[Any]], kernel: Any, *arguments: Any, **options: Any) -> None:
    into.append(threads(torch.cuda.current_device()).submit(kernel.warmup, *arguments, grid=(1,), **options))


@cache
def threads(device: int) -> ThreadPoolExecutor:
    """Each thread has a current device of its own."""
    return ThreadPoolExecutor(initializer=torch.cuda.set_device, initargs=(device,))
