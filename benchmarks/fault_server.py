"""What is attacked: a small run, a server of it, and clients that compare its answers."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import measured, posrec

ITEMS = 30
SESSIONS = [["i3"], ["i3", "i4"], ["i9", "i2", "i7"], ["i12", "i12", "i5", "i1"]]
CLIENTS = 4
SETTLED = 3.0  # seconds until a changed folder is noticed and loaded


def write_log(path: Path, sessions: int = 400) -> None:
    """A log in which an item is mostly followed by the next one."""
    lines = ["session_id,item_id,timestamp"]
    for number in range(sessions):
        start = 1_700_000_000_000 + 3_600_000 * number
        lines += [f"s{number},i{(number * 7 + step) % ITEMS},{start + 1000 * step}" for step in range(3 + number % 5)]
    path.write_text("\n".join(lines) + "\n")


def make_run(folder: Path, seed: int) -> Path:
    """A trained run, made once; runs of different seeds answer differently."""
    run = folder / f"run-{seed}"
    if not (folder / "data").exists():
        write_log(folder / "clicks.csv")
        measured(posrec("prepare", folder / "clicks.csv", "--format", "csv", "--out", folder / "data"))
    if not run.exists():
        settings = ["--set", "d=16", "--epochs", 2, "--device", "cpu", "--seed", seed, "--no-export"]
        measured(posrec("train", folder / "data", "--model", "posrec", "--out", run, *settings))
    return run


class Server:
    """`posrec serve` as a process; it is ready to answer when it is made. `prefix` is a command that starts it."""

    def __init__(self, run: Path, *options: object, onnx: bool = False, prefix: Sequence[str] = ()) -> None:
        line = [*prefix, *posrec("serve", run, "--port", 0, *([] if onnx else ["--no-onnx"]), *options)]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        self.log: list[dict[str, Any]] = []
        threading.Thread(target=self.read_log, daemon=True).start()
        self.port = int(self.wait_for("listening")["url"].rpartition(":")[2])
        self.wait_for("serving")

    def read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"message": line})

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in list(self.log) if line.get("message") == message]

    def wait_for(self, message: str, number: int = 1) -> dict[str, Any]:
        end = time.monotonic() + 120
        while len(found := self.said(message)) < number:
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit(f"the server did not log {message!r}: {self.log[-5:]}")
            time.sleep(0.05)
        return found[-1]

    def ask(self, session: list[str], k: int = 5) -> tuple[int, list[str]]:
        return self.post("/v1/recommend", {"session": session, "k": k})

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, list[str]]:
        """The status and the recommended items; 0 where the connection was lost."""
        status, content = self.answer(path, body)
        return status, [one["item"] for one in content.get("items", [])]

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The status and the content of an answer; 0 where there is none within 30 seconds."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def answers(self) -> list[list[str]]:
        return [self.ask(session)[1] for session in SESSIONS]

    def compared(self, expected: list[list[str]], number: int) -> str:
        """Ask for one of the sessions: whether its answer is the expected one."""
        status, items = self.ask(SESSIONS[number % len(SESSIONS)])
        right = items == expected[number % len(SESSIONS)]
        return "right" if right else f"wrong ({status})" if status else "lost"

    def workers(self) -> list[int]:
        parent = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]

    def folders(self) -> list[Path]:
        """What /proc has of the server and its workers."""
        return [Path(f"/proc/{pid}") for pid in (self.process.pid, *self.workers())]

    def memory(self) -> int:
        """Bytes that the server and its workers hold now."""
        pages = sum(int((folder / "statm").read_text().split()[1]) for folder in self.folders())
        return pages * os.sysconf("SC_PAGE_SIZE")

    def processor_seconds(self) -> float:
        fields = [(folder / "stat").read_text().rpartition(")")[2].split() for folder in self.folders()]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return sum(len(list((folder / "fd").iterdir())) for folder in self.folders())

    def tracebacks(self) -> int:
        return sum("traceback" in line or "Traceback" in line.get("message", "") for line in list(self.log))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def repeated(*works: Callable[[int], str]) -> Iterator[list[Counter[str]]]:
    """Each work in CLIENTS threads, again and again until the block ends; its outcomes are counted."""
    stop, counts = threading.Event(), [Counter[str]() for _ in works]

    def repeat(work: Callable[[int], str], count: Counter[str], number: int) -> None:
        while not stop.is_set():
            number += 1
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


class Missing(Exception):
    """What a part needs is not installed."""


class Attack:
    """A part of the faults on a server. `step` does something to it and returns what came of it; the text begins with
    "failed" where that is wrong. `close` returns more figures."""

    def __init__(self, run: Path, *options: object, prefix: Sequence[str] = ()) -> None:
        self.server = Server(run, *options, prefix=prefix)
        self.expected = self.server.answers()
        self.slowest = 0.0  # seconds that a plain request has taken

    def step(self, number: int, draw: random.Random) -> str:
        raise NotImplementedError

    def ask(self, place: int) -> str:
        """A plain request, compared with the expected answer."""
        began = time.monotonic()
        outcome = self.server.compared(self.expected, place)
        self.slowest = max(self.slowest, time.monotonic() - began)
        return outcome

    def wait_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not (done := is_done()) and time.monotonic() < end:
            time.sleep(0.1)
        return done

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> dict[str, Any]:
        about = {**self.figures(), "slowest_ms": round(1000 * self.slowest), "tracebacks": self.server.tracebacks()}
        self.server.stop()
        return about
