"""The stores of sessions as tests see them: a redis-server on a free port, and a SQLite file."""

import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posrec.server.session_store import hashed, key
from tests.server.server_process import until

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
# Of both stores: timeouts that a busy machine does not reach, instead of half a second.
REDIS_TIMEOUTS = "socket_timeout=60&socket_connect_timeout=60&timeout=60"
SQLITE_TIMEOUT = "timeout=60"


class Store:
    def __init__(self, folder: Path) -> None:
        import redis

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.errors = redis.RedisError
        self.client: Any = redis.Redis(port=self.port, decode_responses=True)

    def address(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}?{REDIS_TIMEOUTS}"

    def stored(self, session: str) -> list[str]:
        clicks: list[str] = self.client.lrange(key(session), 0, -1)
        return clicks

    def put(self, session: str, *clicks: str) -> None:
        self.client.rpush(key(session), *clicks)

    def seconds_left(self, session: str) -> float:
        return float(self.client.ttl(key(session)))

    def expire(self, session: str) -> None:
        self.client.pexpire(key(session), 1)
        until(lambda: not self.client.exists(key(session)))

    def start(self) -> None:
        options = f"--port {self.port} --bind 127.0.0.1 --dir {self.folder} --save"
        line = [str(PROGRAM), *options.split(), ""]  # saves nothing
        self.process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
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


class SqliteFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def address(self) -> str:
        return f"sqlite:{self.path}?{SQLITE_TIMEOUT}"

    def execute(self, statement: str, *values: Any) -> list[Any]:
        connection = sqlite3.connect(self.path, timeout=60)
        try:
            with connection:
                return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def stored(self, session: str) -> list[str]:
        rows = self.execute("SELECT clicks FROM sessions WHERE id = ?", hashed(session))
        return json.loads(rows[0][0]) if rows else []

    def put(self, session: str, *clicks: str) -> None:
        row = (hashed(session), time.time() + 1000, json.dumps(clicks))
        self.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", *row)

    def seconds_left(self, session: str) -> float:
        query = "SELECT expires FROM sessions WHERE id = ?"
        ((expires,),) = self.execute(query, hashed(session))
        return float(expires) - time.time()

    def expire(self, session: str) -> None:
        change = "UPDATE sessions SET expires = 1 WHERE id = ?"
        self.execute(change, hashed(session))

    def stop(self) -> None:
        self.path.rename(self.path.with_name("aside"))
        self.path.mkdir()

    def start(self) -> None:
        self.path.rmdir()
        self.path.with_name("aside").rename(self.path)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Another process writes, and does not end."""
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.close()


AnyStore = Store | SqliteFile
