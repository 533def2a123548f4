"""A client that sends a fixed number of requests a second over kept-alive connections.

Latency is counted from the moment a request was due, so that no waiting time is hidden. The client
shares the processor with the server that it measures, so it sends prepared bytes and parses as
little of each answer as it can.
"""

import asyncio
import gc
import json
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import uvloop


def plain_requests(items: int, number: int = 2000) -> list[bytes]:
    """Requests of 20 recommendations for random sessions of 1 to 10 clicks on i0, i1, ..."""
    draw = random.Random(0)
    sessions = (
        [f"i{draw.randrange(items)}" for _ in range(draw.randint(1, 10))]
        for _ in range(number)
    )
    return [post("/v1/recommend", {"session": clicks, "k": 20}) for clicks in sessions]


def head(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("utf-8", "replace")


def post(path: str, body: Any, *headers: str) -> bytes:
    """A request with this body, as JSON if it is not bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, f"Content-Length: {len(content)}", *headers) + content


class Connection(asyncio.Protocol):
    """One kept-alive connection; it reports the status of every answer to `Load.answered`."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.received = bytearray()
        self.answer_bytes = -1  # unknown until the head is complete
        self.due = 0.0
        self.asked = False  # a request was sent and is not answered yet

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, due: float, request: bytes) -> None:
        self.due = due
        self.asked = True
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.answer_bytes < 0:
            head_end = self.received.find(b"\r\n\r\n")
            if head_end < 0:
                return
            start = self.received.lower().index(b"content-length: ") + 16
            end = self.received.index(b"\r\n", start)
            self.answer_bytes = head_end + 4 + int(self.received[start:end])
        if len(self.received) >= self.answer_bytes:
            status = int(self.received[9:12])
            del self.received[:]
            self.answer_bytes = -1
            self.asked = False
            self.load.answered(self, status)

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost(self)


class Load:
    def __init__(self, requests: Sequence[bytes], rate: float, seconds: float) -> None:
        self.requests = requests
        self.rate = rate
        self.total = int(rate * seconds)
        # Idle connections are used in turn, as the connections of many clients are.
        self.idle = deque[Connection]()
        # requests that are due while no connection is idle
        self.overdue = deque[tuple[float, bytes]]()
        self.latencies: dict[int, list[float]] = {}  # seconds by status
        self.dropped = 0
        self.done = 0
        self.closing = False
        self.connecting: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Open one more connection, and try again while the server refuses it."""
        while True:
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self), "127.0.0.1", self.port
                )
            except OSError:
                await asyncio.sleep(0.01)
                continue
            self.use(connection)
            return

    async def run(self, port: int, connections: int) -> None:
        self.port = port
        self.finished = asyncio.Event()
        for _ in range(connections):
            await self.connect()
        began = time.perf_counter()
        for number in range(self.total):
            due = began + number / self.rate
            wait = due - time.perf_counter()
            if wait > 0 or number % 32 == 0:
                await asyncio.sleep(max(0.0, wait))
            request = self.requests[number % len(self.requests)]
            if self.idle:
                self.idle.popleft().ask(due, request)
            else:
                self.overdue.append((due, request))
        await self.finished.wait()
        self.took = time.perf_counter() - began
        self.closing = True
        for task in self.connecting:
            task.cancel()
        for connection in self.idle:
            connection.transport.close()

    def answered(self, connection: Connection, status: int) -> None:
        latency = time.perf_counter() - connection.due
        self.latencies.setdefault(status, []).append(latency)
        self.use(connection)
        self.count()

    def use(self, connection: Connection) -> None:
        """Send the oldest request that is due, or keep the connection for the next one."""
        if self.overdue:
            connection.ask(*self.overdue.popleft())
        else:
            self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Replace a connection that the server has closed; its unanswered request is dropped."""
        if self.closing:
            return
        if connection.asked:
            self.dropped += 1
            self.count()
        else:
            self.idle.remove(connection)
        task = asyncio.get_running_loop().create_task(self.connect())
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    def count(self) -> None:
        self.done += 1
        if self.done >= self.total:
            self.finished.set()


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    result = {}
    for percent in (50, 90, 99):
        index = min(len(ordered) - 1, int(len(ordered) * percent / 100))
        result[f"p{percent}_ms"] = round(1000 * ordered[index], 2)
    return result


def paced(
    port: int, requests: Sequence[bytes], rate: float, seconds: float, connections: int
) -> dict[str, Any]:
    """Send the load; report the latencies of answers with status 200 and the number of errors."""
    load = Load(requests, rate, seconds)
    gc.collect()
    # To collect everything imported here takes a tenth of a second, which would count as latency.
    gc.freeze()
    try:
        uvloop.run(load.run(port, connections))
    finally:
        gc.unfreeze()
    answered = load.latencies.get(200, [])
    return {
        "connections": connections,
        "requests": load.total,
        "per_second": round(load.done / load.took),
        **percentiles(answered or [0.0]),
        "errors": load.total - len(answered),
        "dropped": load.dropped,
    }
