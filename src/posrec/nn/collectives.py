"""World: the processes that train one model together, and the operations in which all of them take part.

Every operation must be called by all processes, in the same order. It is run by torch.distributed: by gloo on CPUs, by
NCCL on GPUs. A process that waits for one that has ended gets an error, and raises it as `LostRank`. What is part of a
training step is an operator of torch, so that steps can be compiled and captured (`training/step.py`).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, distributed

P = ParamSpec("P")
R = TypeVar("R")
# torch 2.13 renamed these two.
all_gather: Any = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
reduce_scatter: Any = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


class LostRank(RuntimeError):
    """Another process of the training has ended, or can't be reached."""


def together(operation: Callable[P, R]) -> Callable[P, R]:
    """Raise errors of torch.distributed as LostRank."""

    @functools.wraps(operation)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return operation(*arguments, **options)
        except RuntimeError as error:
            raise LostRank(str(error).splitlines()[0]) from error

    return wrapped


@torch.library.custom_op("posrec::gathered", mutates_args=())
@together
def gathered(own: Tensor, size: int) -> Tensor:
    whole = own.new_empty(size * own.shape[0], *own.shape[1:])
    all_gather(whole, own.contiguous())
    return whole


@gathered.register_fake
def _(own: Tensor, size: int) -> Tensor:
    return own.new_empty(size * own.shape[0], *own.shape[1:])


@torch.library.custom_op("posrec::sums_of_parts", mutates_args=())
@together
def sums_of_parts(values: Tensor, size: int) -> Tensor:
    part = values.new_empty(values.shape[0] // size, *values.shape[1:])
    reduce_scatter(part, values.contiguous())
    return part


@sums_of_parts.register_fake
def _(values: Tensor, size: int) -> Tensor:
    return values.new_empty(values.shape[0] // size, *values.shape[1:])


@torch.library.custom_op("posrec::copied_from", mutates_args=())
@together
def copied_from(source: int, like: Tensor) -> Tensor:
    copy = like.clone()
    distributed.broadcast(copy, source)
    return copy


@copied_from.register_fake
def _(source: int, like: Tensor) -> Tensor:
    return torch.empty_like(like)


@dataclass(frozen=True)
class World:
    """`size` processes, of which this one is number `rank`. Sizes of tensors are the same in all of them unless the
    operation says otherwise."""

    rank: int = 0
    size: int = 1

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process to communicate with."""
        return self.size == 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gathered(self, own: Tensor) -> Tensor:
        """[b, ...] of every process -> [size b, ...], in the order of their ranks."""
        return own if self.is_alone else gathered(own, self.size)

    @together
    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if not self.is_alone:
            distributed.all_reduce(values)
        return values

    def sums_of_parts(self, values: Tensor) -> Tensor:
        """[size b, ...] of every process -> [b, ...]: this process's part of the sum over all processes."""
        return values if self.is_alone else sums_of_parts(values, self.size)

    @together
    def exchanged(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send the first sent[0] rows to process 0, the next sent[1] to process 1, and so on; returns the rows that
        were received, in the order of the ranks they are from."""
        found = rows.new_empty(sum(received), *rows.shape[1:])
        distributed.all_to_all_single(found, rows.contiguous(), received, sent)
        return found

    def copied_from(self, source: int, like: Tensor) -> Tensor:
        """A copy of the tensor that process `source` has; the others give one of the same size."""
        return like if self.is_alone else copied_from(source, like)

    @together
    def spread(self, values: Tensor) -> Tensor:
        """Copy `values` of the first process to all others, in place."""
        if not self.is_alone:
            distributed.broadcast(values, 0)
        return values

    @together
    def send(self, values: Tensor, to: int) -> None:
        distributed.send(values.contiguous(), to)

    @together
    def receive(self, values: Tensor, source: int) -> Tensor:
        distributed.recv(values, source)
        return values

    def number(self, value: float, device: torch.device) -> float:
        """A number of the first process."""
        return float(self.spread(torch.tensor(value, dtype=torch.double, device=device)))

    def text(self, value: str, device: torch.device) -> str:
        """A text of the first process."""
        content = torch.tensor(list(value.encode()), dtype=torch.uint8, device=device)
        length = int(self.number(len(content), device))
        if not self.is_first:
            content = torch.empty(length, dtype=torch.uint8, device=device)
        return bytes(self.spread(content).tolist()).decode() if length else ""
