"""One client's connection: what uvicorn's own (`HttpToolsProtocol`) lacks.

- A head larger than HEAD_BYTES is refused (431), and so is a request that is not sent in time (408), by `check`.
- An answer that the client does not read, and a connection without a request, are given up by `check`. Little is
  handed to the kernel before the client reads: it would take megabytes, the answers to many pipelined requests.
- Where too many connections are open, an idle one is closed for the new one. Where none is idle, the new one is
  refused (503) with the first piece of its request.
- The head and the body of an answer are sent together (`JoinedWrites`).
- A request that is refused because the server has too much to do is answered as soon as its head is complete, without
  a task of its own: a server with three times as many requests as it can answer spends most of its time on refusals.
- Of pipelined requests few are parsed at a time, and the client can't send more before some are answered. uvicorn reads
  on after every answer, so that a client could fill the memory.
- A request for an upgrade, such as h2c, is answered in HTTP/1.1 with its body; uvicorn loses the body.
- A client that closes its sending side still gets the answers that are begun within LEAVING_GRACE. The complete
  requests before a broken one are answered too.
- When the server stops, every connection may still send one request, which is answered with `Connection: close`.

Parsing, pipelining, keep-alive and ASGI are uvicorn's. This file alone relies on attributes of uvicorn that are not a
documented interface, therefore pyproject.toml bounds uvicorn's version.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from posrec.server.http.messages import CLOSE, Answer, Header, Refused, error_answer
from posrec.server.json_log import NO_MEMORY

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from posrec.server.http.application import Application

HEAD_BYTES = 32 << 10  # of a request's line and headers
MOST_HEADERS = 100
TOO_LARGE = f"the head of the request is larger than {HEAD_BYTES:,} bytes or has more than {MOST_HEADERS} headers"
OTHER_CODING = "Transfer-Encoding must be chunked, without other codings"
NO_ROOM = "too many connections are open; try again shortly"
PIECE_BYTES = 4 << 10  # that are parsed at a time, so that a head or a number of requests gets little beyond its limit
MOST_PIPELINED = 16  # requests of a connection that wait for their answers; more are not parsed before
KEEP_ALIVE = 75  # seconds that a connection without a request may stay open
CLOSING_GRACE = 1.0  # seconds for one more request of a connection that was open when the server was stopped
LEAVING_GRACE = 2.0  # seconds for the answers to a client that has closed its sending side
MOST_UNREAD = 256 << 20  # bytes of answers that clients have not read, of all connections
LIMIT_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS
UNSENT_BYTES = 128 << 10  # that the kernel holds beside what is on its way to the client
BODY_HEADERS = (b"content-length", b"transfer-encoding")  # the headers that say where a body ends


class JoinedWrites:
    """A transport that sends what is written in one turn of the event loop at its end, with one system call: uvicorn
    writes the head and the body of an answer one after the other."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.transport, self.loop = transport, loop
        self.unsent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        if not self.unsent:
            self.loop.call_soon(self.flush)
        self.unsent.append(data)

    def flush(self) -> None:
        unsent, self.unsent = self.unsent, []
        if unsent and not self.transport.is_closing():  # a client that does not read may have been cut off meanwhile
            self.transport.writelines(unsent)

    def write_eof(self) -> None:
        self.flush()
        self.transport.write_eof()

    def close(self) -> None:
        self.flush()
        self.transport.close()

    def abort(self) -> None:
        self.unsent = []
        self.transport.abort()

    def get_write_buffer_size(self) -> int:
        return int(self.transport.get_write_buffer_size()) + sum(map(len, self.unsent))


class Connection(HttpToolsProtocol):
    app: "Application"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.unanswered: deque[RequestResponseCycle] = deque()  # the requests whose head is complete, the oldest first
        self.unparsed = b""  # what was received while too many requests waited for their answers
        self.has_room = True  # whether this connection is one of those that may be open
        self.in_head = False
        self.receiving_since: float | None = None  # when the first byte of an unfinished request arrived
        self.idle_since = time.monotonic()
        self.unread, self.unread_since = 0, 0.0  # bytes that the client has not read, and since when none of them
        self.refused_since: float | None = None  # what arrives afterwards is discarded
        self.discarding = False  # the body of a request that was refused at its head is being received
        self.advanced = False  # the piece being parsed held bytes of a body, or the end of a request
        self.bytes_since_advance = 0  # a head, trailers or chunk extensions
        self.repeating_head = False  # see `ignore_upgrade`
        self.stopping = False

    # What the transport calls

    def connection_made(self, transport: Any) -> None:
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        if LIMIT_UNSENT is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, LIMIT_UNSENT, UNSENT_BYTES)
        if len(self.connections) > self.app.settings.connections:
            self.has_room = self.close_an_idle_connection()

    def data_received(self, data: bytes) -> None:
        if not self.has_room:  # others may have been closed meanwhile
            self.has_room = len(self.connections) <= self.app.settings.connections
        self.unparsed += data
        self.parse(MOST_PIPELINED)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client has closed its sending side. One that has left altogether looks the same, so it gets only the
        answers that are begun soon."""
        self.parse(len(self.unparsed))
        if not self.close_after_complete_requests():
            return None  # it closes the connection
        self.loop.call_later(LEAVING_GRACE, self.close_if_unanswered)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn itself tells only the latest of several pipelined requests."""
        for cycle in self.unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    # Parsing

    def parse(self, most_pipelined: int) -> None:
        """Parse what was received, until so many requests wait for their answers."""
        data, self.unparsed = self.unparsed, b""
        for start in range(0, len(data), PIECE_BYTES):
            if self.refused_since is not None or self.transport.is_closing():
                return
            if len(self.unanswered) >= most_pipelined:
                self.unparsed = data[start:]
                self.flow.pause_reading()
                return
            self.feed(data[start : start + PIECE_BYTES])

    def feed(self, piece: bytes) -> None:
        self.advanced = False
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stopped:
            self.ignore_upgrade(piece[stopped.args[0] :])
            return
        except httptools.HttpParserError as error:
            reason = error.__context__  # what a method of this class has raised, if one has
            if isinstance(reason, MemoryError):
                reason = Refused(503, NO_MEMORY)
            self.refuse(reason if isinstance(reason, Refused) else Refused(400, "the request is not valid HTTP"))
            return
        if not self.has_room:
            self.refuse(Refused(503, NO_ROOM))
            return
        self.bytes_since_advance = 0 if self.advanced else self.bytes_since_advance + len(piece)
        if self.bytes_since_advance > HEAD_BYTES or (self.in_head and len(self.headers) > MOST_HEADERS):
            self.refuse(Refused(431 if self.in_head else 400, TOO_LARGE))

    def ignore_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as nginx does.

        The parser has stopped after the head and takes the body for another protocol. A new parser, which is given a
        head without the request for an upgrade, reads the rest.
        """
        headers = b"".join(b"%s: %s\r\n" % header for header in self.scope["headers"] if header[0] in BODY_HEADERS)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.repeating_head = True
        self.feed(b"POST / HTTP/1.1\r\n" + headers + b"\r\n" + rest)

    def on_message_begin(self) -> None:
        if not self.repeating_head:
            super().on_message_begin()
            self.in_head, self.receiving_since = True, time.monotonic()

    def on_headers_complete(self) -> None:
        if self.repeating_head:
            self.repeating_head = False
            return
        self.in_head = False
        # A head that arrived in one or two pieces is smaller than the limit.
        if len(self.headers) > MOST_HEADERS or (self.bytes_since_advance and self.head_bytes() > HEAD_BYTES):
            raise Refused(431, TOO_LARGE)
        if not self.has_room:
            raise Refused(503, NO_ROOM)
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and set(codings) != {b"chunked"}:
            raise Refused(400, OTHER_CODING)  # the parser would hand over a compressed body as it is
        if self.refused_at_head():
            return
        super().on_headers_complete()
        self.headers = []  # the trailers of a body in chunks, which nobody reads
        self.unanswered.append(self.cycle)
        self.cycle.scope["has_left"] = self.transport.is_closing  # type: ignore[typeddict-unknown-key]  # see Request
        if self.stopping:
            self.cycle.keep_alive = False

    def head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def refused_at_head(self) -> bool:
        """Refuse a request that the server has no time for; whether it has none. Its body is read and discarded, and
        the connection stays open."""
        parser = self.parser
        if self.unanswered or self.stopping or self.expect_100_continue or parser.should_upgrade():
            return False
        if not parser.should_keep_alive() or (reason := self.app.refusal(parser.get_method(), self.url)) is None:
            return False
        self.app.count(parser.get_method().decode(), self.url.decode(), reason.status, 0.0)
        self.transport.write(as_http(error_answer(reason), self.origin_headers()))
        self.discarding = True
        return True

    def on_body(self, body: bytes) -> None:
        self.advanced = True
        if not self.discarding:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.discarding:
            self.advanced, self.discarding = True, False
            self.receiving_since, self.idle_since = None, time.monotonic()
            return
        if not self.parser.should_upgrade():
            self.advanced, self.receiving_since = True, None
            super().on_message_complete()
            if len(self.unanswered) == 1:  # uvicorn pauses reading for a large body, and would not notice who leaves
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self.unanswered.popleft()
        self.idle_since = time.monotonic()
        super().on_response_complete()
        if self.unparsed:
            self.parse(MOST_PIPELINED)

    # Refusals

    def refuse(self, reason: Refused) -> None:
        """Answer a request that does not reach the application, and close.

        What the client still sends is read and discarded until it closes or the timeout ends: a connection that is
        closed with unread data is reset, and the client may lose the answer.
        """
        self.refused_since, self.receiving_since = time.monotonic(), None
        if self.close_after_complete_requests():
            return
        if self.unanswered:  # the one whose body is broken has reached the application, which counts it
            (cycle,) = self.unanswered
            if cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected, cycle.waiting_for_100_continue = True, False
            cycle.message_event.set()
        else:
            self.app.metrics.request("", reason.status, 0.0)
        self.transport.write(as_http(error_answer(reason), [*self.origin_headers(), CLOSE]))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def origin_headers(self) -> Sequence[Header]:
        headers = self.scope["headers"] if self.scope else ()
        return self.app.access.origin_headers(dict(headers).get(b"origin"))

    def close_after_complete_requests(self) -> bool:
        """Close after the answers to the requests that are complete; whether there are any."""
        complete = [cycle for cycle in self.unanswered if not cycle.more_body]
        if complete:
            complete[-1].keep_alive = False
        return bool(complete)

    # Time, number and stop

    def check(self, now: float) -> None:
        """Close what has taken too long. Called about once a second for all connections: a timer for each would cost
        more than the rest of a request's handling."""
        seconds, unread = self.app.settings.request_timeout, self.transport.get_write_buffer_size()
        if unread != self.unread:  # the client has read something
            self.unread, self.unread_since = unread, now
        if unread:
            if now - self.unread_since > seconds:
                self.reset()
        elif self.refused_since is not None:
            if now - self.refused_since > seconds:
                self.transport.abort()
        elif self.receiving_since is not None:
            if self.flow.read_paused and (self.in_head or len(self.unanswered) > 1):
                self.receiving_since = now  # others are answered first; nothing is read, so the client can't send
            elif now - self.receiving_since > seconds:
                self.stop_receiving(f"was not received within {seconds:g} seconds")
        elif self.is_idle() and now - self.idle_since > KEEP_ALIVE:
            self.transport.close()

    def stop_receiving(self, reason: str) -> None:
        """Refuse a request that was not sent in time."""
        if self.discarding:
            self.transport.abort()
        elif self.in_head:
            self.refuse(Refused(408, f"the request {reason}"))
            if not self.unanswered:
                self.transport.close()
        elif self.cycle.response_started:
            self.transport.close()
        else:
            refused = Refused(408, f"the body {reason}")
            self.cycle.scope["refused"] = refused  # type: ignore[typeddict-unknown-key]  # raised by Request.body
            self.cycle.message_event.set()

    def reset(self) -> None:
        """Close at once. Otherwise the kernel would hold what the client has not read, for minutes."""
        client = self.transport.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's timer after an answer; `check` closes idle connections."""

    def is_idle(self) -> bool:
        """No request is being received, answered or refused."""
        busy = self.unanswered or self.receiving_since is not None or self.refused_since is not None
        return not busy and not self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def close_an_idle_connection(self) -> bool:
        """Close the one that has been idle longest, those without any request first; whether there is one."""
        others: set[Connection] = self.connections - {self}  # type: ignore[assignment]
        idle = [connection for connection in others if connection.is_idle()]
        if idle:
            min(idle, key=lambda connection: (connection.cycle is not None, connection.idle_since)).transport.close()
        return bool(idle)

    def shutdown(self) -> None:
        """The server stops. A request that is on its way is still answered, and the answer announces the end."""
        self.stopping = True
        if self.unanswered or self.refused_since is not None:
            super().shutdown()
        else:
            self.loop.call_later(CLOSING_GRACE, self.stop_reading)

    def close_if_unanswered(self) -> None:
        if self.unanswered and not self.unanswered[0].response_started:
            self.transport.abort()

    def stop_reading(self) -> None:
        if not self.unanswered:
            self.transport.close()


def limit_unread(connections: Iterable[Connection]) -> None:
    """Close those with the most unread bytes where too many wait: a client that reads slowly may take for ever."""
    are_open = [connection for connection in connections if not connection.transport.is_closing()]
    by_unread = sorted(are_open, key=lambda connection: connection.unread)
    unread = sum([connection.unread for connection in by_unread])
    while unread > MOST_UNREAD:
        largest = by_unread.pop()
        unread -= largest.unread
        largest.reset()


def as_http(answer: Answer, more_headers: Iterable[Header]) -> bytes:
    """The bytes of an answer that is not sent by uvicorn."""
    length = b"%d" % len(answer.content)
    headers = (*answer.headers, *more_headers, (b"content-type", answer.media_type), (b"content-length", length))
    line = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n".encode()
    return line + b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n" + answer.content
