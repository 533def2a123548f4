"""Timeouts for slow clients: a request that is not sent, an answer that is not read, a connection without a request.

uvicorn itself only limits the pause after an answer. Without these a client could hold a connection and its memory for
as long as it likes. All connections are checked about once a second: a timer for each would cost more than the rest of
a request's handling.
"""

import time

from posrec.server.connection import Connection

KEEP_ALIVE = 75  # seconds that a connection without a request may stay open


class ConnectionTimeout:
    """A client has `seconds` to send a request, head and body together, and to read any part of an answer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.unread: dict[Connection, tuple[int, float]] = {}  # bytes that the client has not read, and since when

    def check(self, connections: set[Connection]) -> None:
        """Close what has taken too long; to be called about once a second."""
        now, before, self.unread = time.monotonic(), self.unread, {}
        for connection in list(connections):
            if unread := connection.transport.get_write_buffer_size():
                size, since = before.get(connection, (unread, now))
                if size != unread:  # the client has read something
                    since = now
                if now - since > self.seconds:
                    connection.transport.abort()
                else:
                    self.unread[connection] = unread, since
            elif connection.since is not None:
                if connection.flow.read_paused:  # the server does not read, so the client can't send
                    connection.since = now
                elif now - connection.since > self.seconds:
                    connection.expire()
            elif not connection.pending and now - connection.idle_since > KEEP_ALIVE:
                connection.transport.abort()
