"""World: the processes that train one model together, and the operations in which all of them take part.

`torchrun --nproc-per-node 2 -m posrec train shop --out runs/first` starts the same command twice. Each process reads
the dataset, and the first one writes the run (docs/scaling.md). Every operation must be called by all processes, in
the same order; it is run by gloo on CPUs and by NCCL on GPUs. A process that waits for one that has ended, or for one
that hangs longer than TIMEOUT, raises `LostRank`. A process on its own is a World of one, whose operations return
what they are given.
"""

import functools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from posrec.device import choose_device
from posrec.errors import InputError, RunFailed, first_line

P = ParamSpec("P")
R = TypeVar("R")
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
TIMEOUT = timedelta(minutes=30)  # for all processes to take part in an operation
REPORT_PERIOD = timedelta(seconds=10)  # in which all processes that wait in vain notice it
TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)  # in what gloo and NCCL say
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
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise LostRank(first_line(error)[:200]) from error

    return wrapped


@dataclass(frozen=True)
class World:
    """`size` processes, of which this one is number `rank`. Sizes of tensors are the same in all of them unless the
    operation says otherwise."""

    rank: int = 0
    size: int = 1

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run."""
        return self.rank == 0

    @together
    def gathered(self, own: Tensor) -> Tensor:
        """[b, ...] of every process -> [size b, ...], in the order of their ranks."""
        if self.is_alone:
            return own
        whole = own.new_empty(self.size * own.shape[0], *own.shape[1:])
        all_gather(whole, own.contiguous())
        return whole

    @together
    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if not self.is_alone:
            distributed.all_reduce(values)
        return values

    @together
    def sums_of_parts(self, values: Tensor) -> Tensor:
        """[size b, ...] of every process -> [b, ...]: this process's part of the sum over all processes."""
        if self.is_alone:
            return values
        part = values.new_empty(values.shape[0] // self.size, *values.shape[1:])
        reduce_scatter(part, values.contiguous())
        return part

    @together
    def exchanged(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send the first sent[0] rows to process 0, the next sent[1] to process 1, and so on; returns the rows that
        were received, in the order of the ranks they are from."""
        incoming = rows.new_empty(sum(received), *rows.shape[1:])
        distributed.all_to_all_single(incoming, rows.contiguous(), received, sent)
        return incoming

    @together
    def spread(self, values: Tensor, source: int = 0) -> Tensor:
        """Copy `values` of process `source` to all others, in place."""
        if not self.is_alone:
            distributed.broadcast(values, source)
        return values

    def of_process(self, value: Any, device: torch.device, source: int = 0) -> Any:
        """A value of process `source`, which JSON can hold, for all."""
        if self.is_alone:
            return value
        content = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=device)
        length = int(self.spread(torch.tensor(len(content), device=device), source))
        if self.rank != source:
            content = torch.empty(length, dtype=torch.uint8, device=device)
        return json.loads(bytes(self.spread(content, source).tolist()))

    def agree(self, device: torch.device, *wishes: bool) -> list[bool]:
        """Whether any process wants each of these: to stop, or to save a checkpoint. Processes receive a signal, and
        look at the clock, at different steps, and have to do the same after each."""
        if self.is_alone:
            return list(wishes)
        counts: list[bool] = (self.summed(torch.tensor(wishes, dtype=torch.int32, device=device)) > 0).tolist()
        return counts


@contextmanager
def joined(device: str) -> Iterator[World]:
    """Join the other processes for the block, if torchrun, or a launcher that sets the same environment variables,
    started this one.

    Args:
        device: "cpu", "cuda" or "auto". On GPUs each process of a machine has its own.

    Raises:
        RunFailed: if the processes can't reach each other, or one of them was lost.
    """
    if not all(name in os.environ for name in LAUNCHED):
        yield World()
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = choose_device(device).type == "cuda"
    if on_gpu:
        if local_rank >= torch.cuda.device_count():
            raise InputError(
                f"torchrun started more processes than the {torch.cuda.device_count()} GPUs of this machine; lower "
                "--nproc-per-node, or use --device cpu"
            )
        torch.cuda.set_device(local_rank)
    options: dict[str, Any] = {"device_id": torch.device("cuda", local_rank)} if on_gpu else {}
    try:
        store, rank, size = next(rendezvous("env://"))
        options |= {"store": store, "rank": rank, "world_size": size, "timeout": TIMEOUT}
        distributed.init_process_group("nccl" if on_gpu else "gloo", **options)
    except (RuntimeError, ValueError) as error:
        raise RunFailed(f"the processes of the training can't reach each other: {first_line(error)}") from None
    try:
        yield World(rank, size)
    except LostRank as error:
        what = f"another process of the training has ended ({first_line(error)}); its message, if it left one, says why"
        if TIMED_OUT.search(str(error)):
            names = " and ".join(map(str, hanging_ranks(store, rank, size)))
            what = f"process {names} of the training did not answer within {TIMEOUT}; it hangs, or its machine does"
        raise RunFailed(f"{what}. The last checkpoint is kept: continue with the same command and --resume") from None
    finally:
        distributed.destroy_process_group()


def hanging_ranks(store: Any, rank: int, size: int) -> list[int]:
    """The processes that do not report that they have waited in vain, as this one does here.

    torchrun keeps the store in a process of its own; other launchers in process 0, which may be the one that hangs.
    """
    hanging = [0]
    end = time.monotonic() + REPORT_PERIOD.total_seconds()
    try:
        store.set_timeout(REPORT_PERIOD)
        store.set(f"posrec/waited/{rank}", "")
        while hanging and time.monotonic() < end:
            hanging = [other for other in range(size) if not store.check([f"posrec/waited/{other}"])]
            time.sleep(0.1)
    except RuntimeError:  # the store has ended with its process
        pass
    return hanging


@contextmanager
def entered_by_first(world: World, device: torch.device) -> Iterator[None]:
    """In the block, the first process prepares what all need; at its end the others wait for it. If it fails, they
    raise an error too."""
    try:
        yield
    except BaseException:
        if world.is_first:
            world.of_process(False, device)
        raise
    if not world.of_process(True, device):
        raise InputError("the first process could not begin the run; its message says why")
