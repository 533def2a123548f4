"""Starts a real redis-server on a free port."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.server.server_process import until

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")


class Store:
    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        import redis

        self.folder = folder
        self.errors = redis.RedisError
        self.client: Any = redis.Redis(port=self.port, decode_responses=True)

    def address(self, database: int = 0) -> str:
        """With a timeout that a busy machine does not reach, instead of half a second."""
        return f"redis://127.0.0.1:{self.port}/{database}?socket_timeout=60&socket_connect_timeout=60&timeout=60"

    def start(self) -> None:
        line = [PROGRAM, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.process = subprocess.Popen(list(map(str, line)), stdout=subprocess.DEVNULL)
        until(self.answers)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except self.errors:
            return False

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """The process is stopped: connections stay open, but nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
