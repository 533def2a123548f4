"""A `posrec serve` process that the fault parts attack, and the small run that it serves."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ITEMS = 30
SESSIONS = [["i3"], ["i3", "i4"], ["i9", "i2", "i7"], ["i12", "i12", "i5", "i1"]]


def posrec(*arguments: object, code: str | None = None) -> list[str]:
    """The command line of a posrec command; `code` takes the place of `-m posrec`."""
    program = ["-m", "posrec"] if code is None else ["-c", code]
    return [sys.executable, *program, *map(str, arguments)]


def done(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(posrec(*arguments), capture_output=True, text=True, check=False)


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
        checked(done("prepare", folder / "clicks.csv", "--format", "csv", "--out", folder / "data"))
    if not run.exists():
        settings = ["--set", "d=16", "--epochs", 2, "--device", "cpu", "--seed", seed, "--no-export"]
        checked(done("train", folder / "data", "--model", "posrec", "--out", run, *settings))
    return run


def checked(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if result.returncode:
        sys.exit(f"{' '.join(result.args)} failed:\n{result.stderr}")
    return result


class Server:
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
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            content = json.loads(answer.read())
            return answer.status, [one["item"] for one in content.get("items", [])]
        except (ConnectionError, http.client.HTTPException):
            return 0, []
        finally:
            connection.close()

    def answers(self) -> list[list[str]]:
        return [self.ask(session)[1] for session in SESSIONS]

    def workers(self) -> list[int]:
        parent = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]

    def memory(self) -> int:
        """Bytes that the server and its workers hold now."""
        pids = [self.process.pid, *self.workers()]
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return pages * os.sysconf("SC_PAGE_SIZE")

    def files(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in [self.process.pid, *self.workers()])  # noqa: PTH208

    def tracebacks(self) -> int:
        return sum("traceback" in line or "Traceback" in line.get("message", "") for line in list(self.log))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)
