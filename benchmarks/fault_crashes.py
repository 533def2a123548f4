"""kill -9: of workers while clients ask, and of commands at random moments and at every rename."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

from fault_server import SESSIONS, Server, done, make_run, posrec

CLIENTS = 4
MOST_LOST = 3  # requests of a client: the one in flight, and connections that the kernel had given to the dead worker
COMMANDS = ("prepare", "train", "score", "export")
KILLED_AT_RENAME = """
import os, signal
left = [{number}]
def wrapped(really):
    def rename(*arguments, **options):
        left[0] -= 1
        if left[0] == 0 and {before}:
            os.kill(os.getpid(), signal.SIGKILL)
        result = really(*arguments, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return rename
os.rename, os.replace = wrapped(os.rename), wrapped(os.replace)
from posrec.cli import main
main()
"""


class WorkerKills:
    """A worker is killed while clients ask: all other requests are answered, rightly, and the worker is replaced."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(make_run(folder, 1), "--workers", 2)
        self.server.wait_for("serving", 2)
        self.expected = self.server.answers()
        self.lost = 0

    def step(self, number: int, draw: random.Random) -> str:
        counts: Counter[str] = Counter()
        stop = threading.Event()

        def ask(offset: int) -> None:
            place = offset
            while not stop.is_set():
                place = (place + 1) % len(SESSIONS)
                status, items = self.server.ask(SESSIONS[place])
                counts["right" if items == self.expected[place] else "lost" if status == 0 else f"wrong {status}"] += 1

        clients = [threading.Thread(target=ask, args=(offset,)) for offset in range(CLIENTS)]
        for client in clients:
            client.start()
        time.sleep(draw.uniform(0.05, 0.5))
        loaded = len(self.server.said("serving"))
        os.kill(draw.choice(self.server.workers()), signal.SIGKILL)
        self.server.wait_for("serving", loaded + 1)
        stop.set()
        for client in clients:
            client.join()
        self.lost += counts["lost"]
        wrong = {name: count for name, count in counts.items() if name.startswith("wrong")}
        if wrong or counts["lost"] > MOST_LOST * CLIENTS:
            return f"failed: {dict(counts)}"
        return "replaced, requests in flight lost" if counts["lost"] else "replaced, nothing lost"

    def close(self) -> dict[str, int]:
        about = {"requests_lost": self.lost, "tracebacks": self.server.tracebacks()}
        self.server.stop()
        return about


class CommandKills:
    """A killed command leaves no half-written output, and the same command then succeeds with the same result."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, make_run(folder, 1)
        sessions = "".join(f'{{"session": ["i{n % 30}", "i{(n + 1) % 30}"]}}\n' for n in range(2000))
        (folder / "sessions.jsonl").write_text(sessions)
        self.seconds: dict[str, float] = {}
        self.results: dict[str, bytes] = {}
        for name in COMMANDS:
            out = self.fresh(name)
            began = time.monotonic()
            result = done(*self.arguments(name, out))
            assert result.returncode == 0, result.stderr
            self.seconds[name], self.results[name] = time.monotonic() - began, self.content(name, out)

    def fresh(self, name: str) -> Path:
        work = self.folder / "killed"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return work / {"score": "answers.jsonl", "export": "model.onnx"}.get(name, "out")

    def arguments(self, name: str, out: Path) -> list[object]:
        match name:
            case "prepare":
                return ["prepare", self.folder / "clicks.csv", "--format", "csv", "--out", out]
            case "train":
                settings = ["--set", "d=16", "--epochs", 2, "--device", "cpu", "--seed", 1]
                return ["train", self.folder / "data", "--model", "posrec", "--out", out, *settings]
            case "score":
                return ["score", self.run, self.folder / "sessions.jsonl", out, "--device", "cpu"]
        return ["export", self.run, "--onnx", out]

    def content(self, name: str, out: Path) -> bytes:
        """What must be the same after the repetition."""
        file = {"prepare": out / "train_items.npy", "train": out / "model.safetensors"}.get(name, out)
        return file.read_bytes() if name != "export" else b"" if file.stat().st_size else b"empty"

    def step(self, number: int, draw: random.Random) -> str:
        name = COMMANDS[number % len(COMMANDS)]
        out = self.fresh(name)
        if number // len(COMMANDS) % 2:
            code = KILLED_AT_RENAME.format(number=draw.randint(1, 8), before=draw.random() < 0.5)
            killed = subprocess.run(posrec(*self.arguments(name, out), code=code), capture_output=True, check=False)
            ended = killed.returncode != -signal.SIGKILL
        else:
            process = subprocess.Popen(
                posrec(*self.arguments(name, out)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                process.wait(draw.uniform(0, 1.05 * self.seconds[name]))
                ended = True
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                ended = False
        if ended or (out.exists() and name != "train"):
            complete = self.content(name, out) == self.results[name]
            return f"{name}: complete" if complete else f"failed: {name} left a file that differs"
        again = done(*self.arguments(name, out), *(["--resume"] if out.exists() else []))
        if again.returncode:
            return f"failed: {name} again: {again.stderr.strip()[-200:]}"
        if self.content(name, out) != self.results[name]:
            return f"failed: {name} again gives another result"
        left = [path.name for path in out.parent.iterdir() if ".unfinished-" in path.name]
        return f"failed: {name} left {left}" if left else f"{name}: killed, then repeated with the same result"

    def close(self) -> dict[str, int]:
        return {}
