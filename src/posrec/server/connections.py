"""Connections on which nothing moves are closed: a head that never ends, an answer that nobody reads, silence.

uvicorn times only the pause after an answer; without this a client could hold a connection and its memory for as long
as it likes. A body that does not come is told so by `patience`, which knows the request it belongs to.
"""

import time
from typing import Any

KEEP_ALIVE = 75  # seconds that a connection may stay open on which nothing is asked
SILENT = ("silent", 0)

Stuck = tuple[str, int]  # where a connection stands still


class Connections:
    """To be asked to look about once a second."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.since: dict[Any, tuple[Stuck, float]] = {}

    def look(self, connections: set[Any]) -> None:
        now, before, self.since = time.monotonic(), self.since, {}
        for one in list(connections):
            where = stuck(one)
            if where is None:
                continue
            earlier, since = before.get(one, (where, now))
            if earlier != where:  # it moved
                since = now
            if now - since > (KEEP_ALIVE if where == SILENT else self.patience):
                one.transport.abort()
            else:
                self.since[one] = (where, since)


def stuck(connection: Any) -> Stuck | None:
    """Where one of uvicorn's connections waits for its client; None where it does not, or uvicorn's own clock runs."""
    if unread := connection.transport.get_write_buffer_size():
        return "unread", unread
    if connection.cycle is None:  # there was no request yet
        return SILENT if connection.headers is None else ("head", 0)
    if connection.cycle.response_complete and connection.timeout_keep_alive_task is None:
        return "head", id(connection.cycle)  # more came after the last answer, but no whole head
    return None
