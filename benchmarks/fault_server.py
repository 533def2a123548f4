"""What is attacked: a small run, a server of it, and clients that compare its answers."""

import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import measured, posrec

ITEMS = 30
SESSIONS = [["i3"], ["i3", "i4"], ["i9", "i2", "i7"], ["i12", "i12", "i5", "i1"]]
CLIENTS = 4
SETTLED = 3.0  # seconds until a changed folder is noticed and loaded
SMALL = ("--model", "posrec", "--set", "d=16", "--epochs", 2, "--device", "cpu", "--no-export")  # a training of seconds


class Missing(Exception):
    """What a part needs is not installed."""


class Failure(Exception):
    """What must hold does not."""


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise Failure(otherwise)


def wait_until(is_done: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (done := is_done()) and time.monotonic() < end:
        time.sleep(0.1)
    return done


def write_log(path: Path, sessions: int = 400) -> None:
    """A log in which an item is mostly followed by the next one."""
    lines = ["session_id,item_id,timestamp"]
    for number in range(sessions):
        start = 1_700_000_000_000 + 3_600_000 * number
        lines += [f"s{number},i{(number * 7 + step) % ITEMS},{start + 1000 * step}" for step in range(3 + number % 5)]
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
    fresh, before = run.with_name("fresh"), run.with_name("before")
    shutil.copytree(whole, fresh)
    run.rename(before)
    fresh.rename(run)
    shutil.rmtree(before)
    time.sleep(SETTLED)


class Server:
    """`posrec serve` as a process; it is ready to answer when it is made. `prefix` is a command that starts it."""

    def __init__(
        self, run: Path, *options: object, onnx: bool = False, prefix: Sequence[str] = (), port: int = 0
    ) -> None:
        line = [*prefix, *posrec("serve", run, "--port", port, "--onnx" if onnx else "--no-onnx", *options)]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.log: list[dict[str, Any]] = []
        threading.Thread(target=self.read_log, daemon=True).start()
        self.port = int(self.wait_for("listening")["url"].rpartition(":")[2])
        self.wait_for("serving")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """Kill the server and its workers at once, as if the machine had failed."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"message": line})

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in list(self.log) if line.get("message") == message]

    def wait_for(self, message: str, number: int = 1) -> dict[str, Any]:
        wait_until(lambda: len(self.said(message)) >= number or self.process.poll() is not None, 120)
        if len(found := self.said(message)) < number:
            self.stop()
            sys.exit(f"the server did not log {message!r}: {self.log[-5:]}")
        return found[-1]

    def tracebacks(self) -> int:
        return sum("traceback" in line or "Traceback" in line.get("message", "") for line in list(self.log))

    def ask(self, session: list[str], k: int = 5) -> tuple[int, list[str]]:
        """The status and the recommended items."""
        status, content = answer(self.port, "/v1/recommend", {"session": session, "k": k})
        return status, [one["item"] for one in content.get("items", [])]

    def answers(self) -> list[list[str]]:
        return [self.ask(session)[1] for session in SESSIONS]

    def workers(self) -> list[int]:
        parent = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]

    def folders(self) -> list[Path]:
        """What /proc has of the server and its workers."""
        return [Path(f"/proc/{pid}") for pid in (self.process.pid, *self.workers())]

    def memory_mb(self) -> int:
        """What the server and its workers hold now."""
        pages = sum(int((folder / "statm").read_text().split()[1]) for folder in self.folders())
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    def processor_seconds(self) -> float:
        fields = [(folder / "stat").read_text().rpartition(")")[2].split() for folder in self.folders()]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return sum(len(list((folder / "fd").iterdir())) for folder in self.folders())


def answer(port: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status and the content of an answer; 0 where there is none within 30 seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        found = connection.getresponse()
        return found.status, json.loads(found.read() or b"{}")
    except (OSError, http.client.HTTPException, ValueError):
        return 0, {}
    finally:
        connection.close()


@contextmanager
def repeated(*works: Callable[[int], str]) -> Iterator[list[Counter[str]]]:
    """Each work in CLIENTS threads, again and again until the block ends; its outcomes are counted."""
    stop, counts = threading.Event(), [Counter[str]() for _ in works]

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


class Attack:
    """A part of the faults. `step` does something and returns what came of it, or raises a Failure. `figures` become
    part of the result."""

    def __init__(self) -> None:
        self.figures: defaultdict[str, Any] = defaultdict(int)

    def step(self, number: int, draw: random.Random) -> str:
        raise NotImplementedError

    def close(self) -> dict[str, Any]:
        """End what was started; the figures."""
        return dict(self.figures)


class ServerAttack(Attack):
    """An attack on a server, whose answers before it are the right ones."""

    def __init__(self, run: Path, *options: object, prefix: Sequence[str] = ()) -> None:
        super().__init__()
        self.server = Server(run, *options, prefix=prefix)
        self.expected = self.server.answers()
        self.memory_before = self.server.memory_mb()

    def ask(self, place: int) -> str:
        """A plain request, compared with the expected answer."""
        began, place = time.monotonic(), place % len(SESSIONS)
        status, items = self.server.ask(SESSIONS[place])
        self.note("slowest_ms", 1000 * (time.monotonic() - began))
        return "right" if items == self.expected[place] else f"wrong ({status})" if status else "lost"

    def note(self, name: str, value: float) -> None:
        """Keep the largest value."""
        self.figures[name] = max(self.figures[name], round(value))

    def close(self) -> dict[str, Any]:
        if self.server.process.poll() is None:
            self.figures["memory_growth_mb"] = self.server.memory_mb() - self.memory_before
        self.server.stop()
        return {**self.figures, "tracebacks": self.server.tracebacks()}
