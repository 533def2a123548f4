"""Starts the processes of a training as torchrun does, without the seconds that torchrun itself takes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.helpers import ROOT, SOURCE


def start(processes: int, *arguments: object) -> list[subprocess.Popen[str]]:
    """`python ARGUMENTS`, in so many processes that belong together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(processes):
        environment = {
            **os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}", "OMP_NUM_THREADS": "1", "COLUMNS": "300",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes),
            "RANK": str(rank), "LOCAL_RANK": str(rank),
        }  # fmt: skip
        line = [sys.executable, *map(str, arguments)]
        found.append(subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return found


def finish(processes: list[subprocess.Popen[str]], timeout: float = 300) -> list[tuple[int, str, str]]:
    """The exit code, standard output and standard error of each."""
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        found.append((process.returncode, out, err))
    return found


def run_jobs(processes: int, folder: Path, *jobs: str) -> None:
    """Run jobs of sharded_jobs.py; what became of each is in the folder."""
    finish(start(processes, Path(__file__).with_name("sharded_jobs.py"), folder, *jobs))


def outcomes(processes: int, folder: Path, job: str) -> list[str]:
    """What a job left in each process: "done", or its error."""
    files = [folder / f"{job}.{rank}" for rank in range(processes)]
    return [file.read_text() if file.exists() else "it did not run: a process ended before it" for file in files]
