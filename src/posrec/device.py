"""The device to compute on, the threads of a CPU, and hints for runs that do not fit in memory.

torch is imported inside functions, because the environment variables for threads must be set before
it is loaded.
"""

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

# Environment variables of a process that torchrun has started.
LAUNCHED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
GPU_DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")
CGROUP = Path("/sys/fs/cgroup")
THREADS = "OMP_NUM_THREADS"
FEW_OPERATIONS = 1_000_000_000  # in a training step; PosRec on a small shop has fewer
# How long a waiting thread spins before it sleeps: GOMP_SPINCOUNT in rounds (GNU's OpenMP, which
# torch brings along), KMP_BLOCKTIME in milliseconds (Intel's and LLVM's).
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"}
# On a CPU torch raises a plain RuntimeError if memory is exhausted; its message has these words.
OUT_OF_MEMORY = ("DefaultCPUAllocator", "allocate memory", "bad_alloc")


class Threads:
    """Whether the user chose the number of threads: by --threads, or before posrec was imported."""

    chosen = THREADS in os.environ


def choose_device(name: str) -> "torch.device":
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {name!r} is not known; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def gpu_drivers() -> list[Path]:
    """The files of GPU drivers on Linux: NVIDIA's, AMD's, and Windows' for its Linux."""
    return [path for name in GPU_DRIVERS for path in Path("/dev").glob(name)]


def computes_on_cpu(name: str) -> bool:
    """Whether `choose_device(name)` is a CPU. torch, which takes seconds to import, is not asked if
    there can't be a GPU."""
    if name == "cpu" or (
        name == "auto" and sys.platform == "linux" and not gpu_drivers()
    ):
        return True
    return choose_device(name).type == "cpu"


def started_by_torchrun() -> bool:
    """Whether this is one of several processes of torchrun, or of a launcher like it."""
    return os.environ.keys() >= LAUNCHED and os.environ["WORLD_SIZE"] != "1"


def share_cores() -> None:
    """Settings for computing on cores that others use too; to be made before torch is loaded.

    Threads of OpenMP wait by spinning, so two trainings on the same cores burn each other's time.
    A thread that sleeps at once is slow to wake. So threads spin for a moment, long enough for the
    next small operation, and then sleep. And OpenMP starts a thread for every core that it sees,
    although a container's quota may allow fewer. Environment variables that are set are respected.
    """
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
    cores = usable_cores()
    if cores < len(affinity()):
        os.environ.setdefault(THREADS, str(cores))


def use_threads(threads: int | None) -> None:
    """Compute with this many threads, here and in processes that are started; None: the default."""
    if threads is None:
        return
    Threads.chosen = True
    os.environ[THREADS] = str(threads)
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


@contextmanager
def threads_for(operations: int) -> Iterator[None]:
    """In the block, compute steps of few operations with one thread: distributing them would take
    longer than it saves. A number of threads that the user has chosen stays.
    """
    import torch

    before = torch.get_num_threads()
    if operations < FEW_OPERATIONS and not Threads.chosen:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """The cores that this process may use: its affinity, or fewer under a container's quota."""
    return max(1, math.ceil(min(len(affinity()), cpu_quota())))


def affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS


def cpu_quota(cgroup: Path = CGROUP) -> float:
    """The CPU time that the control group allows, in cores; infinite if there is no limit."""
    with suppress(OSError, ValueError):  # version 2; without a limit it says "max"
        quota, period = (cgroup / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):  # version 1; without a limit it says -1
        quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
        period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        if int(quota) > 0:
            return int(quota) / int(period)
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
    """The memory that this process may still take: what is free, or less by a container's limit."""
    free = machine_memory()
    with suppress(OSError):  # macOS
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                free = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):  # no control group, or no limit
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        free = min(free, limit - used)
    return free


@contextmanager
def out_of_memory_hint(advice: str) -> Iterator[None]:
    """Turn running out of memory, on a GPU or a CPU, into an error that gives `advice`."""
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        on_cpu = any(words in str(error) for words in OUT_OF_MEMORY)
        if not (on_gpu or on_cpu or isinstance(error, MemoryError)):
            raise
        where = "the GPU's memory" if on_gpu else "memory"
        raise DoesNotFit(f"the run does not fit in {where}; {advice}") from None
