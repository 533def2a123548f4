"""The device to compute on, the threads of a CPU, and hints for runs that do not fit in memory.

torch is imported inside functions, because the environment variables for threads must be set before
it is loaded."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.errors import DoesNotFit, InputError

if TYPE_CHECKING:
    import torch

LAUNCHED = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
}  # environment variables
CGROUP = Path("/sys/fs/cgroup")
THREADS = "OMP_NUM_THREADS"
FEW_OPERATIONS = 1_000_000_000  # in a training step; PosRec on a small shop has fewer, posrec-plus more
# How long a waiting thread spins before it sleeps: GOMP_SPINCOUNT in rounds (GNU's OpenMP, which
# torch brings along), KMP_BLOCKTIME in milliseconds (Intel's and LLVM's).
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"}
# On a CPU torch raises a plain RuntimeError if memory is exhausted; only these words in its message
# show it.
OUT_OF_MEMORY = ("DefaultCPUAllocator", "allocate memory", "bad_alloc")


class Threads:
    """Whether the user has chosen the number of threads: by --threads, or before posrec was
    imported."""

    chosen = THREADS in os.environ


def choose_device(name: str) -> "torch.device":
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {name!r} is not known; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; use --device cpu")
    return torch.device(
        "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"
    )


def computes_on_cpu(name: str) -> bool:
    """Whether `choose_device(name)` is a CPU; "cpu" is known without torch."""
    return name == "cpu" or choose_device(name).type == "cpu"


def started_by_torchrun() -> bool:
    """Whether this is one of several processes that torchrun, or a launcher with the same
    variables, has started."""
    return os.environ.keys() >= LAUNCHED and os.environ["WORLD_SIZE"] != "1"


def share_cores() -> None:
    """Settings for computing on cores that others use too; to be made before torch is loaded.

    Threads of OpenMP wait by spinning unless told otherwise: with two trainings on the same cores
    each burns the time that the other needs. A thread that sleeps at once is slow to wake. So
    threads spin for a moment, long enough for the next small operation, and then sleep. And OpenMP
    starts a thread for every core that it sees, also where a container's quota allows fewer.
    Environment variables that are set already are respected."""
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
    cores = usable_cores()
    if cores < len(affinity()):
        os.environ.setdefault(THREADS, str(cores))


def use_threads(threads: int | None) -> None:
    """Compute with this many threads, in this process and those it starts; None leaves the default."""
    if threads is None:
        return
    Threads.chosen = True
    os.environ[THREADS] = os.environ["POLARS_MAX_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


@contextmanager
def threads_for(operations: int) -> Iterator[None]:
    """In the block, compute steps of so many additions and multiplications with one thread if they
    are few: then distributing them over threads takes longer than it saves. A number of threads
    that the user has chosen stays."""
    import torch

    before = torch.get_num_threads()
    if operations < FEW_OPERATIONS and not Threads.chosen:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """The cores that this process may use: its affinity, or fewer where a container has a quota of
    CPU time."""
    return max(1, math.ceil(min(len(affinity()), cpu_quota())))


def affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS


def cpu_quota(cgroup: Path = CGROUP) -> float:
    """The CPU time that the control group allows, in cores; infinite if there is no limit."""
    try:  # version 2
        quota, period = (cgroup / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:  # version 1
        quota_us, period_us = (
            int((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text())
            for name in ("quota", "period")
        )
        return quota_us / period_us if quota_us > 0 else math.inf
    except (OSError, ValueError):
        return math.inf


def has_amx() -> bool:
    """Whether the CPU has instructions for products of bf16 matrices (Intel's AMX)."""
    with suppress(OSError):  # not Linux
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    return False


def machine_memory() -> int:
    """The memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(cgroup: Path = CGROUP) -> int:
    """The memory that this process may still take: what is free, or less where a container has a
    limit."""
    free = machine_memory()
    with suppress(OSError, StopIteration):  # macOS
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(
            int(line.split()[1]) * 1024
            for line in lines
            if line.startswith("MemAvailable")
        )
    with suppress(OSError, ValueError):  # no control group, or no limit
        free = min(
            free,
            int((cgroup / "memory.max").read_text())
            - int((cgroup / "memory.current").read_text()),
        )
    return free


@contextmanager
def out_of_memory_hint(advice: str) -> Iterator[None]:
    """Turn running out of memory, on a GPU or a CPU, into an error that gives `advice`."""
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not (
            on_gpu
            or isinstance(error, MemoryError)
            or any(words in str(error) for words in OUT_OF_MEMORY)
        ):
            raise
        where = "the GPU's memory" if on_gpu else "memory"
        raise DoesNotFit(f"the run does not fit in {where}; {advice}") from None
