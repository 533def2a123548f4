"""Runs a benchmark in several processes that belong together, as torchrun would, and collects what they print."""

import json
import os
import resource
import socket
import subprocess
import sys
from typing import Any


def measure(script: str, processes: int, *arguments: object) -> list[dict[str, Any]]:
    """`python SCRIPT ARGUMENTS` in each of so many processes, on one thread each; the JSON of their last lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(processes):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank),
        }  # fmt: skip
        line = [sys.executable, script, *map(str, arguments)]
        started.append(subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"{' '.join(map(str, arguments))}: a process failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def peak_mb() -> float:
    """The peak memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux
