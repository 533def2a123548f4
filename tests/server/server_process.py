"""Starts `posrec serve` as a process, and asks it.

Importing torch takes most of a server's start, so one process imports everything once and is forked
for each server (multiprocessing's fork server). `forked=False` starts the command as a user does.
"""

import http.client
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from tests.helpers import SOURCE


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Forked:
    """A command of posrec in a forked process; the part of subprocess.Popen that the tests use."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.server.preloaded"])
        own, theirs = context.Pipe(duplex=False)
        self.process = context.Process(
            target=run_command, args=(list(arguments), environment, theirs)
        )
        self.process.start()
        theirs.close()
        self.stderr: IO[str] = os.fdopen(os.dup(own.fileno()))
        self.pid: int = self.process.pid or 0

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("posrec", timeout or 0)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_command(
    arguments: list[str], environment: dict[str, str], stderr: Connection
) -> None:
    """In the forked process: `posrec ARGUMENTS`, as `python -m posrec` would run it."""
    os.dup2(stderr.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["posrec", *arguments]
    from posrec.cli import main
    from posrec.server import serve

    if (
        "--items" not in arguments
    ):  # the parent reads that file with polars, whose threads a fork would not have
        serve.START_METHOD = "fork"  # the workers too have imported everything
    main()


@dataclass
class Server:
    process: subprocess.Popen[str] | Forked
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.said("listening")[0]["url"].rpartition(":")[2])

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in list(self.log) if line.get("message") == message]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            content = body
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            if not isinstance(body, bytes | None):
                content = json.dumps(body).encode()
                sent = {"Content-Type": "application/json", **sent}
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            return Answer(
                answer.status,
                {k.lower(): v for k, v in answer.getheaders()},
                answer.read(),
            )
        finally:
            connection.close()

    def recommend(self, *session: Any, **more: Any) -> Answer:
        return self.ask("POST", "/v1/recommend", {"session": list(session), **more})

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def worker(self) -> int:
        (worker,) = children(self)
        return worker

    def open_files(self) -> int:
        return open_files(self.worker)

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith(name) and not line.startswith("#")
        )


def children(server: Server) -> list[int]:
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(server.process.pid)]
    listed = subprocess.run(
        command, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "resource_tracker" not in line]


def open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208


def until(check: Callable[[], Any], seconds: float = 150) -> Any:
    """The limit is long, since the machine may be busy."""
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end, f"not true after {seconds} seconds"
        time.sleep(0.05)
    return value


@contextmanager
def serving(
    run: Path,
    *options: object,
    onnx: bool = False,
    forked: bool = True,
    key: str | None = None,
) -> Iterator[Server]:
    line = [
        "serve",
        str(run),
        "--port",
        "0",
        *([] if onnx else ["--no-onnx"]),
        *map(str, options),
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    if key is not None:
        environment["POSREC_API_KEY"] = key
    process: subprocess.Popen[str] | Forked
    if forked:
        process = Forked(line, environment)
    else:
        command = [sys.executable, "-m", "posrec", *line]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
    server = Server(process)

    def listen() -> None:
        assert process.stderr is not None
        for said in process.stderr:
            server.log.append(
                json.loads(said) if said.startswith("{") else {"message": said}
            )

    threading.Thread(target=listen, daemon=True).start()
    try:
        until(lambda: process.poll() is not None or server.said("listening"))
        assert process.poll() is None, server.log
        until(
            lambda: (
                process.poll() is not None
                or server.said("serving")
                or is_refused(server)
            )
        )
        until(
            lambda: process.poll() is not None or accepts(server)
        )  # one of several workers listens once it is loaded
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def accepts(server: Server) -> bool:
    try:
        socket.create_connection(server.address, timeout=120).close()
    except ConnectionError:
        return False
    return True


def is_refused(server: Server) -> bool:
    return any(
        "can't be served" in line.get("message", "") for line in list(server.log)
    )
