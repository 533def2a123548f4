"""Time and memory of work that takes turns, of processes and of commands."""

import json
import multiprocessing
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def in_turns(
    ways: Mapping[str, Callable[[int], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each way in each round.

    The ways take turns, so that other work slows all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + rounds):
        for name, work in ways.items():
            began = clock()
            work(turn)
            if turn >= warm_up:
                times[name].append(1000 * (clock() - began))
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def this_module() -> str:
    """The module that was started with `python -m`."""
    module = sys.modules["__main__"].__spec__
    assert module is not None, "benchmarks are started with python -m"
    return module.name


def in_processes(processes: int, *options: object) -> list[dict[str, Any]]:
    """Run this module with OPTIONS in processes of one thread each, as torchrun would.

    Returns the JSON of the last line of each.
    """
    shared = {
        "WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    started = []
    for rank in range(processes):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        line = [sys.executable, "-m", this_module(), *map(str, options)]
        environment = {**os.environ, **shared, **ranks}
        started.append(
            subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
        )
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"{' '.join(map(str, options))}: a process failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def apart(work: Callable[..., object], *arguments: object) -> None:
    """Call `work` in another process.

    The peak memory of a process that is started later includes what this one holds by then.
    """
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{work.__name__} failed")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def measured(line: Sequence[str]) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of a process."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(line)} failed:\n{output.read().decode()}")
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gib": round(usage.ru_maxrss / 2**20, 3),  # kilobytes on Linux
    }


def posrec(*arguments: object) -> list[str]:
    """The command line of a posrec command."""
    return [sys.executable, "-m", "posrec", *map(str, arguments)]


def peak_mb() -> float:
    """The peak memory of this process so far, in megabytes."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux
    return kilobytes / 1024
