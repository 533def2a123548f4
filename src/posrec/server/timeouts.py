"""Timeouts for slow clients: a body that is not sent, a connection on which nothing moves.

uvicorn itself only limits the pause after an answer. Without these a client could hold a connection and its memory
for as long as it likes. All requests and connections are checked about once a second: a timer for each request would
cost more than the rest of its handling.
"""

import asyncio
import time
from typing import Any

CHECK_INTERVAL = 1.0  # seconds
KEEP_ALIVE = 75  # seconds that a connection without a request may stay open
IDLE = ("idle", 0)

StalledState = tuple[str, int]  # what a connection waits for, and a number that changes when data moves


class RequestTimeout:
    """Cancels the task of a request whose body was not received within `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.receiving: dict[asyncio.Task[object], float] = {}  # tasks whose body is not complete, and since when
        self.cancelled: set[asyncio.Task[object]] = set()
        self.scheduled = False

    def start(self, task: asyncio.Task[object]) -> None:
        self.receiving[task] = time.monotonic()
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_later(CHECK_INTERVAL, self.check)

    def stop(self, task: asyncio.Task[object]) -> None:
        """The body is complete, or no longer wanted."""
        self.receiving.pop(task, None)

    def check(self) -> None:
        now = time.monotonic()
        for task, began in list(self.receiving.items()):
            if now - began > self.seconds:
                del self.receiving[task]
                self.cancelled.add(task)
                task.cancel()
        self.scheduled = bool(self.receiving)
        if self.scheduled:
            asyncio.get_running_loop().call_later(CHECK_INTERVAL, self.check)

    def has_expired(self, task: asyncio.Task[object]) -> bool:
        """Whether the task was cancelled by this timeout. The first call clears the mark."""
        expired = task in self.cancelled
        self.cancelled.discard(task)
        return expired


class ConnectionTimeout:
    """Closes connections with an unfinished head or an unread answer after `seconds`, idle ones after KEEP_ALIVE."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.stalled: dict[Any, tuple[StalledState, float]] = {}  # each stalled connection's state, and since when

    def check(self, connections: set[Any]) -> None:
        """Close what has not moved for too long; to be called about once a second."""
        now, before, self.stalled = time.monotonic(), self.stalled, {}
        for connection in list(connections):
            state = stalled_state(connection)
            if state is None:
                continue
            earlier, since = before.get(connection, (state, now))
            if earlier != state:  # data has moved
                since = now
            if now - since > (KEEP_ALIVE if state == IDLE else self.seconds):
                connection.transport.abort()
            else:
                self.stalled[connection] = (state, since)


def stalled_state(connection: Any) -> StalledState | None:
    """What one of uvicorn's connections waits for from its client; None where it does not, or uvicorn has a timer."""
    if unread := connection.transport.get_write_buffer_size():
        return "unread", unread
    if connection.cycle is None:  # there was no request yet
        return IDLE if connection.headers is None else ("head", 0)
    if connection.cycle.response_complete and connection.timeout_keep_alive_task is None:
        return "head", id(connection.cycle)  # more data came after the last answer, but no complete head
    return None
