"""Kernels are launched, or only compiled. No GPU is needed: a stand-in notes what is done with it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from posrec.kernels.launch import launch, only_compiled, threads


class Kernel:
    """Has of Triton's kernels what `launch` uses."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.launched, self.compiled = error, [], []  # type: ignore[var-annotated]
        self.may_end = threading.Event()
        self.may_end.set()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given, **options: self.launched.append((grid, given, options))

    def warmup(self, *given: Any, grid: tuple[int, ...], **options: Any) -> None:
        assert self.may_end.wait(60)
        if self.error is not None:
            raise self.error
        self.compiled.append((given, options))


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    threads.cache_clear()
    yield
    threads(0).shutdown()
    threads.cache_clear()


def test_a_kernel_is_launched_with_its_grid_and_arguments() -> None:
    kernel = Kernel()
    launch(kernel, 3, 4)("x", 5, num_warps=8)
    assert kernel.launched == [((3, 4), ("x", 5), {"num_warps": 8})]
    assert kernel.compiled == []


def test_in_the_block_kernels_are_compiled_at_the_same_time_and_not_launched() -> None:
    kernels = [Kernel() for _ in range(3)]
    together = threading.Barrier(3, timeout=60)  # is passed only when all three are being compiled
    for kernel in kernels:
        kernel.may_end.wait = lambda timeout=None: together.wait() >= 0  # type: ignore[method-assign]
    with only_compiled():
        for number, kernel in enumerate(kernels):
            launch(kernel, 9)(number, SIZE=16)
    assert [kernel.compiled for kernel in kernels] == [[((number,), {"SIZE": 16})] for number in range(3)]
    assert not any(kernel.launched for kernel in kernels)
    launch(kernels[0], 9)(0)
    assert kernels[0].launched == [((9,), (0,), {})]


def test_in_the_background_the_block_does_not_wait() -> None:
    kernel = Kernel()
    kernel.may_end.clear()
    with only_compiled(in_background=True):
        launch(kernel, 1)(7)
    assert kernel.compiled == []
    kernel.may_end.set()
    threads(0).shutdown(wait=True)
    assert kernel.compiled == [((7,), {})]


def test_an_error_of_the_compiler_is_left_to_the_launch() -> None:
    with only_compiled():
        launch(Kernel(ValueError("no such type")), 1)()


def test_a_block_in_a_block_leaves_the_outer_one_as_it_was() -> None:
    kernel = Kernel()
    with only_compiled():
        with only_compiled():
            pass
        launch(kernel, 1)()
    assert (len(kernel.compiled), kernel.launched) == (1, [])


def test_after_an_error_in_the_block_kernels_are_launched_again() -> None:
    kernel = Kernel()
    with pytest.raises(KeyError), only_compiled():
        raise KeyError
    launch(kernel, 1)()
    assert len(kernel.launched) == 1
