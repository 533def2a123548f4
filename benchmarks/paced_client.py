"""So many requests a second over kept connections, each sent when its time has come.

Latency counts from the moment a request was due, so no wait is hidden, whoever was late. A client must not take the
processor that it measures: this one writes ready-made bytes and looks at no more of an answer than it needs.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import uvloop


class Connection(asyncio.Protocol):
    """Hands every answer's status and bytes to `answered`, then is free again."""

    def __init__(self, load: "Load") -> None:
        self.load, self.received, self.missing = load, bytearray(), -1
        self.due = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, due: float, request: bytes) -> None:
        self.due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.missing < 0:
            head = self.received.find(b"\r\n\r\n")
            if head < 0:
                return
            place = self.received.lower().index(b"content-length: ") + 16
            self.missing = head + 4 + int(self.received[place : self.received.index(b"\r\n", place)])
        if len(self.received) >= self.missing:
            status = int(self.received[9:12])
            del self.received[:]
            self.missing = -1
            self.load.answered(self, status)

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost(self)


class Load:
    def __init__(self, requests: Sequence[bytes], rate: float, seconds: float) -> None:
        self.requests, self.rate, self.total = requests, rate, int(rate * seconds)
        self.idle: deque[Connection] = deque()  # they take turns, as those of many clients do
        self.behind: deque[tuple[float, bytes]] = deque()  # due, and no connection free
        self.latencies: dict[int, list[float]] = {}  # seconds by status
        self.dropped = self.done = 0
        self.closing = False

    async def run(self, port: int, connections: int) -> None:
        loop = asyncio.get_running_loop()
        self.finished = asyncio.Event()
        for _ in range(connections):
            _, one = await loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
            self.idle.append(one)
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
                self.behind.append((due, request))
        await self.finished.wait()
        self.took = time.perf_counter() - began
        self.closing = True
        for one in self.idle:
            one.transport.close()

    def answered(self, connection: Connection, status: int) -> None:
        self.latencies.setdefault(status, []).append(time.perf_counter() - connection.due)
        if self.behind:
            connection.ask(*self.behind.popleft())
        else:
            self.idle.append(connection)
        self.count()

    def lost(self, connection: Connection) -> None:
        if not self.closing:
            self.dropped += 1
            self.count()

    def count(self) -> None:
        self.done += 1
        if self.done >= self.total:
            self.finished.set()


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        f"p{p}_ms": round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))], 2) for p in (50, 90, 99)
    }


def paced(port: int, requests: Sequence[bytes], rate: float, seconds: float, connections: int) -> dict[str, Any]:
    """What came of it: latencies of the answers with status 200, and how many others there were."""
    load = Load(requests, rate, seconds)
    uvloop.run(load.run(port, connections))
    statuses = Counter({status: len(times) for status, times in load.latencies.items()})
    others = {str(status): {"number": len(times), **percentiles(times)}
              for status, times in load.latencies.items() if status != 200}  # fmt: skip
    return {
        "connections": connections, "requests": load.total, "per_second": round(load.done / load.took),
        **percentiles(load.latencies.get(200, [0.0])), "errors": load.total - statuses[200], "dropped": load.dropped,
        "others": others,
    }  # fmt: skip
