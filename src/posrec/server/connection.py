"""One client's connection: limits on what it may send before a request reaches the application, and for how long.

uvicorn's connection (httptools) has no limit on a request's head, loses the body of a request that asks for an upgrade,
and gives no answer to a client that has closed its sending side. This subclass changes these points and leaves parsing,
pipelining and keep-alive to uvicorn. It reads attributes of uvicorn that are not a public interface, therefore
pyproject.toml bounds uvicorn's version.
"""

import time
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from posrec.server.direct import DirectCycle, as_http, error_body

HEAD_BYTES = 32 << 10  # of a request's line and headers
MOST_HEADERS = 100
FRAMING = (b"content-length", b"transfer-encoding")  # the headers that say where a body ends
TOO_LARGE = f"the head of the request is larger than {HEAD_BYTES:,} bytes or has more than {MOST_HEADERS} headers"
CLOSING_GRACE = 1.0  # seconds for the first request of a connection that was open when the server was stopped


class HeadTooLarge(ValueError):
    """A request's head is longer than HEAD_BYTES or has more than MOST_HEADERS headers."""


RETRY = (b"retry-after", b"1")
BUSY = as_http(503, error_body("too many requests are waiting; try again shortly"), RETRY)


class Connection(HttpToolsProtocol):
    """`app` is a Middleware: it counts what is refused here, and says whether it is overloaded."""

    app: Any
    cycle: Any  # uvicorn's, or a DirectCycle

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.since: float | None = None  # when the first byte of an unfinished request arrived
        self.idle_since = time.monotonic()
        self.in_head = False
        self.moved = False  # the piece being parsed held bytes of a body, or the end of a request
        self.without_body = 0  # bytes since a body's last byte: a head, trailers or chunk extensions
        self.refused = False  # what still arrives is discarded
        self.upgrading = False  # the request asks for an upgrade, so the parser stops after its head
        self.repeating_head = False
        self.busy = False  # the request being received is answered 503 as soon as it is complete
        self.direct: bytearray | None = None  # the body so far of a request that may be answered directly
        self.stopping = False
        self.pending: deque[Any] = deque()  # uvicorn's cycles of requests that are not answered yet, the oldest first

    # What the transport calls

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.app.most_connections:
            self.make_room()

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        if self.since is None:
            self.since = time.monotonic()
        for start in range(0, len(data), HEAD_BYTES):  # small pieces, so that no head gets far beyond its limit
            self.feed(data[start : start + HEAD_BYTES])
            if self.refused or self.transport.is_closing():
                return

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client has closed its sending side; where its request is complete, it still gets its answer."""
        return True if self.answer_complete_ones() else None  # None closes the connection

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self.pending:  # uvicorn itself tells only the last of several requests
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    # Parsing

    def feed(self, piece: bytes) -> None:
        self.moved = False
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stopped:
            self.ignore_upgrade(piece[stopped.args[0] :])
            return
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HeadTooLarge):
                self.refuse(431, TOO_LARGE)
            else:
                self.refuse(400, "the request is not valid HTTP")
            return
        self.without_body = 0 if self.moved else self.without_body + len(piece)
        if self.direct is not None:  # the rest of the body is still to come
            self.start_cycle()
        if self.without_body > HEAD_BYTES or (self.in_head and len(self.headers) > MOST_HEADERS):
            self.refuse(431 if self.in_head else 400, TOO_LARGE)

    def ignore_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as nginx does.

        The parser has stopped after the head and takes the body for another protocol. A new one, which has seen the
        same head without the request for an upgrade, reads the rest.
        """
        framing = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] in FRAMING)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.upgrading, self.repeating_head = False, True
        self.feed(b"POST / HTTP/1.1\r\n" + framing + b"\r\n" + rest)

    def on_message_begin(self) -> None:
        if self.repeating_head:
            return
        super().on_message_begin()
        self.in_head = True
        if self.since is None:
            self.since = time.monotonic()

    def on_url(self, url: bytes) -> None:
        if not self.repeating_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # trailers of a body in chunks are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.repeating_head:
            self.repeating_head = False
            return
        self.in_head = False
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > HEAD_BYTES or len(self.headers) > MOST_HEADERS:
            raise HeadTooLarge
        self.upgrading = self.parser.should_upgrade()
        if self.can_answer_directly() and self.app.is_direct(self.parser.get_method(), self.url):
            if self.app.overloaded():
                self.busy = True
            else:
                self.direct = bytearray()
            return
        self.start_cycle()

    def start_cycle(self) -> None:
        """Hand the request to the application, with the part of its body that was received already."""
        body, self.direct = self.direct, None
        super().on_headers_complete()
        self.pending.append(self.cycle)
        if self.stopping:
            self.cycle.keep_alive = False
        if body:
            super().on_body(bytes(body))

    def on_body(self, body: bytes) -> None:
        self.moved = True
        if self.direct is not None:
            self.direct += body
        elif not self.busy:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.upgrading:
            return
        self.moved, self.since = True, None
        if self.busy:
            self.answer_busy()
            return
        if self.direct is not None:
            if self.answer_directly(bytes(self.direct)):
                self.direct = None
                return
            self.start_cycle()
        super().on_message_complete()

    # Answers without the application

    def can_answer_directly(self) -> bool:
        """Whether an answer may be written without a task: not while an earlier request of the connection is answered,
        nor while the client does not read."""
        if self.expect_100_continue or self.upgrading or self.stopping or self.flow.write_paused:
            return False
        return not self.pending and self.parser.get_http_version() == "1.1"

    def answer_directly(self, body: bytes) -> bool:
        """False, with nothing done, where the application has to answer."""
        before, self.cycle = self.cycle, DirectCycle(self, self.parser.should_keep_alive())
        self.pending.append(self.cycle)
        if self.app.begin(self.scope, body, self.cycle):
            return True
        self.pending.pop()
        self.cycle = before
        return False

    def answer_busy(self) -> None:
        """503 without a task, and without the application."""
        self.busy = False
        self.app.count_refused()
        self.transport.write(BUSY)
        self.idle_since = time.monotonic()
        if not self.parser.should_keep_alive():
            self.transport.close()

    def refuse(self, status: int, sentence: str) -> None:
        """Answer a request that does not reach the application, and close.

        What the client still sends is read and discarded until it closes or the timeout ends: a connection that is
        closed with unread data is reset, and the client may lose the answer.
        """
        self.refused, self.since = True, time.monotonic()
        if self.answer_complete_ones():
            return
        if not self.pending:  # a request that has reached the application is counted there
            self.app.metrics.request("", status, 0.0)
        for cycle in self.pending:  # the one whose body is refused
            if cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected, cycle.waiting_for_100_continue = True, False
            cycle.message_event.set()
        more = ((b"connection", b"close"), *((RETRY,) if status == 503 else ()))
        self.transport.write(as_http(status, error_body(sentence), *more))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def answer_complete_ones(self) -> bool:
        """Close after the answers to the requests that are complete; whether there are any."""
        complete = [cycle for cycle in self.pending if not cycle.more_body]
        if complete:
            complete[-1].keep_alive = False
        return bool(complete)

    # Time and number

    def is_idle(self) -> bool:
        """No request is being received or answered."""
        return (
            self.since is None
            and not self.pending
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
        )

    def make_room(self) -> None:
        """Too many connections are open: close the one that has been idle longest, the silent ones first.

        Where none is idle, the new one is answered 503.
        """
        others: set[Connection] = self.connections - {self}  # type: ignore[assignment]
        idle = [one for one in others if one.is_idle()]
        if idle:
            min(idle, key=lambda one: (one.cycle is not None, one.idle_since)).transport.close()
        else:
            self.refuse(503, "too many connections are open; try again shortly")

    def expire(self) -> None:
        """The request was not received in time."""
        sentence = f"the request was not received within {self.app.settings.request_timeout:g} seconds"
        if self.refused:
            self.transport.abort()
        elif self.pending and self.pending[-1].more_body:
            self.since = None
            self.pending[-1].scope["expired"] = True  # read by TrackedRequest.receive
            self.pending[-1].message_event.set()
        else:
            self.refuse(408, sentence)
            if not self.pending:
                self.transport.close()

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer for each request: timeouts.py closes connections that stay idle."""
        self.pending.popleft()
        self.idle_since = time.monotonic()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def shutdown(self) -> None:
        """The server stops. A client that has just connected may still send one request."""
        self.stopping = True
        if self.cycle is None and not self.refused:
            self.loop.call_later(CLOSING_GRACE, self.close_if_idle)
        else:
            super().shutdown()

    def close_if_idle(self) -> None:
        if self.is_idle():
            self.transport.close()
