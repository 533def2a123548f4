"""Faults of a served run: workers killed, the session store killed or frozen, files of the run damaged, under load."""

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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import free_port, measured, posrec

ITEMS = 30
SESSIONS = [["i3"], ["i3", "i4"], ["i9", "i2", "i7"], ["i12", "i12", "i5", "i1"]]
CLIENTS = 4
MOST_LOST = 3  # requests of a client: the one in flight, and connections that the kernel had given to the dead worker
STORE = shutil.which("redis-server") or shutil.which("valkey-server")
BACK = 60  # seconds until stored sessions must be answered again
DAMAGES = ("truncated", "emptied", "removed", "of another run", "noise", "swapped")
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
    """`posrec serve` as a process; it is ready to answer when it is made."""

    def __init__(self, run: Path, *options: object, onnx: bool = False) -> None:
        line = posrec("serve", run, "--port", 0, *([] if onnx else ["--no-onnx"]), *options)
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = json.loads(answer.read())
            return answer.status, [one["item"] for one in content.get("items", [])]
        except (ConnectionError, http.client.HTTPException):
            return 0, []
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


class WorkerKills:
    """A worker is killed while clients ask: all other requests are answered, rightly, and the worker is replaced."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(make_run(folder, 1), "--workers", 2)
        self.server.wait_for("serving", 2)
        self.expected = self.server.answers()
        self.lost = 0

    def step(self, number: int, draw: random.Random) -> str:
        with repeated(lambda place: self.server.compared(self.expected, place)) as (counts,):
            time.sleep(draw.uniform(0.05, 0.5))
            loaded = len(self.server.said("serving"))
            os.kill(draw.choice(self.server.workers()), signal.SIGKILL)
            self.server.wait_for("serving", loaded + 1)
        self.lost += counts["lost"]
        wrong = {name: count for name, count in counts.items() if name.startswith("wrong")}
        if wrong or counts["lost"] > MOST_LOST * CLIENTS:
            return f"failed: {dict(counts)}"
        return "replaced, requests in flight lost" if counts["lost"] else "replaced, nothing lost"

    def close(self) -> dict[str, int]:
        about = {"requests_lost": self.lost, "tracebacks": self.server.tracebacks()}
        self.server.stop()
        return about


class StoreFaults:
    """Requests without a stored session are answered, rightly, all the time; the others get 503 at worst.

    When the store is back, so are the stored sessions.
    """

    def __init__(self, folder: Path) -> None:
        if STORE is None:
            sys.exit("neither redis-server nor valkey-server is installed")
        self.port, self.folder, self.slowest = free_port(), folder, 0.0
        self.start_store()
        self.server = Server(make_run(folder, 1), "--session-store", f"redis://127.0.0.1:{self.port}/0")
        self.expected = self.server.answers()
        assert self.click("first", "i3")[0] == 200

    def start_store(self) -> None:
        line = [STORE, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.store = subprocess.Popen(list(map(str, line)), stdout=subprocess.DEVNULL)

    def click(self, session: str, item: str) -> tuple[int, list[str]]:
        return self.server.post(f"/v1/sessions/{session}/click", {"item": item, "k": 5})

    def step(self, number: int, draw: random.Random) -> str:
        kind = ("killed", "frozen")[number % 2]

        def ask(place: int) -> str:
            began = time.monotonic()
            outcome = self.server.compared(self.expected, place)
            self.slowest = max(self.slowest, time.monotonic() - began)
            return outcome

        with repeated(ask, lambda place: str(self.click(f"{number}-{place % CLIENTS}", "i3")[0])) as (plain, stored):
            time.sleep(draw.uniform(0.2, 1))
            self.store.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
            time.sleep(draw.uniform(1, 3))
            if kind == "killed":
                self.store.wait()
                self.start_store()
            else:
                self.store.send_signal(signal.SIGCONT)
            end = time.monotonic() + BACK
            while (status := self.click(f"back-{number}", "i3")[0]) != 200 and time.monotonic() < end:
                time.sleep(0.05)
        if set(plain) != {"right"} or not set(stored) <= {"200", "503"}:
            return f"failed: {kind}: without a stored session {dict(plain)}, with one {dict(stored)}"
        if status != 200 or self.server.ask(SESSIONS[0])[1] != self.expected[0]:
            return f"failed: {kind}: stored sessions are not answered again ({status})"
        return f"{kind}: stored sessions got 503, all others right answers" if stored["503"] else f"{kind}: not noticed"

    def close(self) -> dict[str, float]:
        about = {"slowest_without_store_ms": round(1000 * self.slowest), "tracebacks": self.server.tracebacks()}
        self.server.stop()
        self.store.send_signal(signal.SIGCONT)
        self.store.kill()
        self.store.wait()
        return about


class DamagedRuns:
    """Every answer is that of a whole run, and the whole run is served again in the end."""

    def __init__(self, folder: Path) -> None:
        self.whole, self.other = make_run(folder, 1), make_run(folder, 2)
        self.run = folder / "served"
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.whole, self.run)
        self.server = Server(self.run)
        self.expected = self.server.answers()
        self.files = sorted(path.name for path in self.whole.iterdir())

    def step(self, number: int, draw: random.Random) -> str:
        name = self.files[number % len(self.files)]
        damage = DAMAGES[number // len(self.files) % len(DAMAGES)]
        neighbour = self.files[(number + 1) % len(self.files)]
        with repeated(lambda place: self.server.compared(self.expected, place)) as (counts,):
            damage_file(self.run / name, self.other / name, self.run / neighbour, damage, draw)
            time.sleep(SETTLED)
        self.restore()
        if self.server.process.poll() is not None or self.server.answers() != self.expected:
            return f"failed: {name} {damage}: the whole run is not served again"
        if set(counts) != {"right"}:
            return f"failed: {name} {damage}: {dict(counts)}"
        return "only right answers"

    def restore(self) -> None:
        """Rename a whole run into place, and wait until it answers."""
        fresh, damaged_run = self.run.with_name("fresh"), self.run.with_name("damaged")
        shutil.copytree(self.whole, fresh)
        self.run.rename(damaged_run)
        fresh.rename(self.run)
        shutil.rmtree(damaged_run)
        time.sleep(SETTLED)

    def close(self) -> dict[str, int]:
        about = {"tracebacks": self.server.tracebacks()}
        self.server.stop()
        return about


def damage_file(file: Path, other: Path, neighbour: Path, damage: str, draw: random.Random) -> None:
    """`other` is the same file of another run, `neighbour` another file of the same run."""
    content = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(content[: draw.randrange(len(content))])
        case "emptied":
            file.write_bytes(b"")
        case "removed":
            file.unlink()
        case "of another run":
            shutil.copyfile(other, file)
        case "swapped":
            file.write_bytes(neighbour.read_bytes())
            neighbour.write_bytes(content)
        case _:
            place = draw.randrange(len(content))
            file.write_bytes(content[:place] + draw.randbytes(32) + content[place + 32 :])
