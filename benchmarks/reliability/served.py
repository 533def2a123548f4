"""What is attacked, and with what: a small run, its server, and clients that compare the answers.

An attack is a function of a folder, steps and figures. In each step, which has its own number and
random generator, it does something, asserts what must hold, and yields the outcome. The figures
become part of the result.
"""

import os
import random
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from benchmarks.harness.measuring import measured, posrec
from tests.server.server_process import (
    Server as Server,
    children,
    serving as serving,
    until,
)

ITEMS = 30
SESSIONS = [["i3"], ["i3", "i4"], ["i9", "i2", "i7"], ["i12", "i12", "i5", "i1"]]
CLIENTS = 4
SETTLED = 3.0  # seconds until a changed folder is noticed and loaded
# The options of a training of seconds.
SMALL = ["--model", "posrec", "--set", "d=16", "--epochs", "2"]
SMALL += ["--device", "cpu", "--no-export"]

Steps = Iterable[tuple[int, random.Random]]
Figures = defaultdict[str, Any]


class Missing(Exception):
    """What an attack needs is not installed."""


def require_program(*names: str) -> None:
    if not any(map(shutil.which, names)):
        raise Missing(f"{' or '.join(names)} is not installed")


def write_log(path: Path, sessions: int = 400) -> None:
    """A log in which an item is mostly followed by the next one."""
    lines = ["session_id,item_id,timestamp"]
    for number in range(sessions):
        start = 1_700_000_000_000 + 3_600_000 * number
        lines += [
            f"s{number},i{(number * 7 + step) % ITEMS},{start + 1000 * step}"
            for step in range(3 + number % 5)
        ]
    path.write_text("\n".join(lines) + "\n")


def make_run(folder: Path, seed: int = 1) -> Path:
    """A trained run, made once; runs of different seeds answer differently."""
    run = folder / f"run-{seed}"
    if not (folder / "data").exists():
        write_log(folder / "clicks.csv")
        measured(posrec("prepare", folder / "clicks.csv", "--out", folder / "data"))
    if not run.exists():
        measured(posrec("train", folder / "data", "--out", run, *SMALL, "--seed", seed))
    return run


def copy_of_run(folder: Path, name: str) -> Path:
    """A run that may be damaged and replaced."""
    shutil.rmtree(folder / name, ignore_errors=True)
    return Path(shutil.copytree(make_run(folder), folder / name))


def replace_run(run: Path, whole: Path) -> None:
    """Rename a copy of the whole run into place, and wait until it is served."""
    fresh = run.with_name("fresh")
    before = run.with_name("before")
    shutil.copytree(whole, fresh)
    run.rename(before)
    fresh.rename(run)
    shutil.rmtree(before)
    time.sleep(SETTLED)


def wait_for_workers(server: Server, number: int) -> None:
    """Wait until workers have logged `number` times that they serve the run."""
    until(lambda: len(server.logged("serving")) >= number)


def folders_of(server: Server) -> list[Path]:
    """What /proc has of the server and its workers."""
    return [Path(f"/proc/{pid}") for pid in (server.process.pid, *children(server))]


def memory_mb(server: Server) -> int:
    """What the server and its workers hold now."""
    pages = sum(
        int((folder / "statm").read_text().split()[1]) for folder in folders_of(server)
    )
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def processor_seconds(server: Server) -> float:
    ticks = 0
    for folder in folders_of(server):
        # The fields after the name of the program, which may contain spaces.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        user_ticks, system_ticks = map(int, fields[11:13])
        ticks += user_ticks + system_ticks
    return ticks / os.sysconf("SC_CLK_TCK")


def open_files(server: Server) -> int:
    return sum(len(list((folder / "fd").iterdir())) for folder in folders_of(server))


def tracebacks(server: Server) -> int:
    return sum(
        "traceback" in line or "Traceback" in line.get("message", "")
        for line in list(server.log)
    )


def answer(server: Server, path: str, body: Any) -> tuple[int, Any]:
    """The status and the content of an answer; the status is 0 if there is no answer."""
    try:
        response = server.ask("POST", path, body)
        return response.status, response.json()
    except (OSError, HTTPException, ValueError):
        return 0, {}


class Attacked:
    """A server whose first answers are the expected ones."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.slowest_ms = 0.0
        self.expected = self.answers()
        self.memory_before = memory_mb(server)

    def ask(self, number: int) -> tuple[int, list[str]]:
        """The status and the items that are recommended for one of SESSIONS."""
        began = time.monotonic()
        body = {"session": SESSIONS[number % len(SESSIONS)], "k": 5}
        status, content = answer(self.server, "/v1/recommend", body)
        self.slowest_ms = max(self.slowest_ms, 1000 * (time.monotonic() - began))
        return status, [item["item"] for item in content.get("items", [])]

    def answers(self) -> list[list[str]]:
        return [self.ask(number)[1] for number in range(len(SESSIONS))]

    def compare(self, number: int) -> str:
        """Whether one more answer is the expected one."""
        status, items = self.ask(number)
        if items == self.expected[number % len(SESSIONS)]:
            return "right"
        return f"wrong ({status})" if status else "lost"

    def memory_growth_mb(self) -> int:
        return memory_mb(self.server) - self.memory_before


@contextmanager
def attacked(figures: Figures, run: Path, *options: object) -> Iterator[Attacked]:
    """`posrec serve` of a run. Its slowest answer, the growth of its memory and its tracebacks
    become figures."""
    with serving(run, *options, forked=False) as server:
        target = Attacked(server)
        try:
            yield target
            figures["memory_growth_mb"] = target.memory_growth_mb()
        finally:
            figures["slowest_ms"] = max(figures["slowest_ms"], round(target.slowest_ms))
            figures["tracebacks"] += tracebacks(server)


@contextmanager
def repeated(*works: Callable[[int], str]) -> Iterator[list[Counter[str]]]:
    """Repeat each work in CLIENTS threads until the block ends, and count its outcomes."""
    stop = threading.Event()
    counts = [Counter[str]() for _ in works]

    def repeat(work: Callable[[int], str], count: Counter[str], number: int) -> None:
        while not stop.is_set():
            number += CLIENTS  # no number twice
            count[work(number)] += 1

    clients = [
        threading.Thread(target=repeat, args=(work, count, number))
        for work, count in zip(works, counts, strict=True)
        for number in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    try:
        yield counts
    finally:
        stop.set()
        for client in clients:
            client.join()
