"""What all benchmarks share: arguments, measuring in turns, processes that belong together, and the result file."""

import argparse
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posrec.io import read_json, write_json


def parser_for(about: str | None, out: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring; with `out`, the option --out has this default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out is not None:
        parser.add_argument("--out", type=Path, default=Path(out), help="the result file")
    return parser


def command() -> str:
    """The command line of this script."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def conditions() -> dict[str, Any]:
    """The machine and versions that every result records."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "machine": f"{machine}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else machine,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result with its command and conditions, and print it."""
    whole = {"command": command(), **result, **conditions()}
    write_json(path, whole)
    print(json.dumps(whole, indent=2))


def write_row(path: Path, row: Mapping[str, Any], key: Sequence[str]) -> None:
    """The same for a file of rows: the row takes the place of the one with the same values of `key`."""
    rows = read_json(path) if path.exists() else []
    whole = {"command": command(), **row, **conditions()}
    write_json(path, [*(one for one in rows if any(one[name] != row[name] for name in key)), whole])
    print(json.dumps(whole, indent=2))


def in_turns(
    ways: Mapping[str, Callable[[int], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each way in each round. The ways take turns, so that other work slows all of them alike."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + rounds):
        for name, work in ways.items():
            began = clock()
            work(turn)
            taken[name] += [1000 * (clock() - began)] if turn >= warm_up else []
    return taken


def in_processes(script: str, processes: int, *options: object) -> list[dict[str, Any]]:
    """`python SCRIPT OPTIONS` in each of so many processes, as torchrun would, on one thread each; the JSON of their
    last lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank in range(processes):
        own = {"WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        line = [sys.executable, script, *map(str, options)]
        environment = {**os.environ, **shared, **own}
        started.append(subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"{' '.join(map(str, options))}: a process failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def peak_mb() -> float:
    """The peak memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux
