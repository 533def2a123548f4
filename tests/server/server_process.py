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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from tests.helpers import SOURCE
from tests.server.asking import Answer, Asker

# Answered requests for recommendations, for `Server.metric`.
ANSWERED = 'posrec_requests_total{path="/v1/recommend",status="2xx"}'


class Forked:
    """A command of posrec in a forked process, with the methods of Popen that tests use."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.server.preloaded"])
        receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(
            target=run_command, args=(arguments, environment, sender)
        )
        self.process.start()
        sender.close()
        self.stderr: IO[str] = os.fdopen(os.dup(receiver.fileno()))
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

    # The parent reads the file of --items with polars, whose threads a fork would not have.
    if "--items" not in arguments:
        serve.START_METHOD = "fork"  # the workers too have imported everything
    main()


class Server(Asker):
    def __init__(self, process: subprocess.Popen[str] | Forked) -> None:
        super().__init__()
        self.process = process
        self.stop_reading = threading.Event()  # the log

    @property
    def port(self) -> int:
        return int(self.logged("listening")[0]["url"].rpartition(":")[2])

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def worker(self) -> int:
        (worker,) = children(self)
        return worker

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        try:
            connection.request(method, path, body, headers)
            return Answer.read(connection.getresponse())
        finally:
            connection.close()

    def open_files(self) -> int:
        return open_files(self.worker)

    def read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if self.stop_reading.is_set():
                return
            is_json = line.startswith("{")
            self.log.append(json.loads(line) if is_json else {"message": line})

    def is_ready(self) -> bool:
        """A worker accepts connections, and has loaded its run or said why it can't."""
        assert self.process.poll() is None, self.log
        has_tried = bool(self.logged("serving") or self.refusals())
        return has_tried and bool(self.logged("listening")) and self.accepts()

    def wait_for(self, message: str, times: int) -> None:
        until(lambda: len(self.logged(message)) == times)

    def accepts(self) -> bool:
        try:
            socket.create_connection(self.address, timeout=120).close()
        except ConnectionError:
            return False
        return True

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def children(server: Server) -> list[int]:
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(server.process.pid)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return [
        int(line.split()[0])
        for line in listed.stdout.splitlines()
        if "resource_tracker" not in line
    ]


def open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208


def until(check: Callable[[], Any], seconds: float = 150) -> Any:
    """Wait until `check` is true. The limit is long, since the machine may be busy."""
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
    """`posrec serve RUN OPTIONS` on a free port, until the end of the block."""
    arguments = ["serve", str(run), "--port", "0", *map(str, options)]
    if not onnx:
        arguments.append("--no-onnx")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    if key is not None:
        environment["POSREC_API_KEY"] = key
    process: subprocess.Popen[str] | Forked
    if forked:
        process = Forked(arguments, environment)
    else:
        command = [sys.executable, "-m", "posrec", *arguments]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
    server = Server(process)
    threading.Thread(target=server.read_log, daemon=True).start()
    try:
        until(server.is_ready)
        yield server
    finally:
        server.stop()
