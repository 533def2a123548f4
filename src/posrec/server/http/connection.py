"""One client's connection: from the bytes that arrive to requests, and from answers to bytes, with limits on both.

uvicorn has the sockets, the signals and the start and end of the server, and makes a `Connection` for each client
(`http=Connection` of its Config). httptools parses HTTP. A request is given to the application when its head is
complete, which may refuse it (`admit`), and once more when its body is complete (`answer`). Requests of one connection
are answered one after the other, and no more are parsed before. uvicorn's own class has none of these limits:

- A head larger than HEAD_BYTES is refused (431), a body larger than the settings allow too (413), and so is a request
  that is not sent in time (408), by `check`.
- An answer that the client does not read, and a connection without a request, are given up by `check`. Little is
  handed to the kernel before the client reads: it would take megabytes, the answers to many pipelined requests.
- Where too many connections are open, an idle one is closed for the new one. Where none is idle, the new one is
  refused (503) with the first piece of its request.
- A request for an upgrade, such as h2c, is answered in HTTP/1.1 with its body.
- A client that closes its sending side still gets the answers that are begun within LEAVING_GRACE. The complete
  requests before a broken one are answered too.
- When the server stops, every connection may still send one request, which is answered with `Connection: close`.
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

from posrec.server.http.messages import BODY_TOO_LARGE, Answer, Disconnected, Header, Refused, Request
from posrec.server.json_log import NO_MEMORY

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

    from posrec.server.http.application import Application

HEAD_BYTES = 32 << 10  # of a request's line and headers
MOST_HEADERS = 100
TOO_LARGE = f"the head of the request is larger than {HEAD_BYTES:,} bytes or has more than {MOST_HEADERS} headers"
OTHER_CODING = "Transfer-Encoding must be chunked, without other codings"
NO_ROOM = "too many connections are open; try again shortly"
PIECE_BYTES = 4 << 10  # that are parsed at a time, so that a head or a number of requests gets little beyond its limit
MOST_UNPARSED = 64 << 10  # bytes behind a request that is being answered; no more are read before
KEEP_ALIVE = 75  # seconds that a connection without a request may stay open
CLOSING_GRACE = 1.0  # seconds for one more request of a connection that was open when the server was stopped
LEAVING_GRACE = 2.0  # seconds for the answers to a client that has closed its sending side
MOST_UNREAD = 256 << 20  # bytes of answers that clients have not read, of all connections
LIMIT_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS
UNSENT_BYTES = 128 << 10  # that the kernel holds beside what is on its way to the client
BODY_HEADERS = (b"content-length", b"transfer-encoding")  # the headers that say where a body ends
CLOSE = (b"connection", b"close")
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(
        self, config: "uvicorn.Config", server_state: "ServerState", app_state: object, _loop: Any = None
    ) -> None:
        self.app: Application = config.loaded_app
        self.server_state, self.connections = server_state, server_state.connections
        self.parser = httptools.HttpRequestParser(self)
        self.requests: deque[Request] = deque()  # whose heads are complete; the oldest is being answered
        self.answering = False  # whether a task computes the answer to the oldest
        self.sent = False  # whether the oldest is answered already, and its body is still being received
        self.unparsed = b""  # what was received behind the oldest
        self.url, self.headers = b"", list[Header]()  # of the head that is being received
        self.read_paused = self.write_paused = False
        self.has_room = True  # whether this connection is one of those that may be open
        self.was_asked = False  # whether there was a request
        self.in_head = False
        self.since = time.monotonic()  # when the request began that is being received; otherwise the last answer
        self.unread, self.unread_since = 0, 0.0  # bytes that the client has not read, and since when none of them
        self.refused = False  # what arrives from now on is discarded
        self.advanced = False  # the piece being parsed held bytes of a body, or the end of a request
        self.bytes_since_advance = 0  # a head, trailers or chunk extensions
        self.repeating_head = False  # see `ignore_upgrade`
        self.leaving = False  # the client has closed its sending side
        self.stopping = False

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.connections.add(self)  # type: ignore[arg-type]
        if LIMIT_UNSENT is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, LIMIT_UNSENT, UNSENT_BYTES)
        if len(self.connections) > self.app.settings.connections:
            self.has_room = self.close_an_idle_connection()

    def data_received(self, data: bytes) -> None:
        if not self.has_room:  # others may have been closed meanwhile
            self.has_room = len(self.connections) <= self.app.settings.connections
        self.unparsed += data
        self.parse()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self.go_on()
        self.parse()

    def eof_received(self) -> bool:
        """The client has closed its sending side. One that has left altogether looks the same, so it gets only the
        answers that are begun soon. Returns whether the connection stays open."""
        self.leaving = True
        if self.is_busy():
            asyncio.get_running_loop().call_later(LEAVING_GRACE, self.give_up)
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        del self.parser  # which refers to this connection, so that the garbage collector would be needed
        if self.requests and not self.requests[0].complete and not self.sent:
            self.app.refuse(self.requests[0], Disconnected())

    # Parsing

    def parse(self) -> None:
        """Parse what was received, until a request waits for its answer."""
        data, self.unparsed = self.unparsed, b""
        for start in range(0, len(data), PIECE_BYTES):
            if self.refused or self.transport.is_closing():
                break
            if self.is_busy():
                self.unparsed = data[start:]
                break
            self.feed(data[start : start + PIECE_BYTES])
        if self.transport.is_closing():
            return
        if self.read_paused != (len(self.unparsed) > MOST_UNPARSED):
            self.read_paused = not self.read_paused
            (self.transport.pause_reading if self.read_paused else self.transport.resume_reading)()
        if self.leaving and not self.is_busy():
            self.transport.close()

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
        headers = self.requests[-1].headers
        lines = b"".join(b"%s: %s\r\n" % (name, headers[name]) for name in BODY_HEADERS if name in headers)
        self.parser = httptools.HttpRequestParser(self)
        self.repeating_head = True
        self.feed(b"POST / HTTP/1.1\r\n" + lines + b"\r\n" + rest)

    # What the parser calls

    def on_message_begin(self) -> None:
        if not self.repeating_head:
            self.url, self.headers = b"", []
            self.in_head = self.was_asked = True
            self.since = time.monotonic()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.repeating_head:
            self.repeating_head = False
            return
        # A head that arrived in one or two pieces is smaller than the limit.
        if len(self.headers) > MOST_HEADERS or (self.bytes_since_advance and self.head_bytes() > HEAD_BYTES):
            raise Refused(431, TOO_LARGE)
        if not self.has_room:
            raise Refused(503, NO_ROOM)
        parser, address = self.parser, httptools.parse_url(self.url)
        version = parser.get_http_version()
        request = Request(
            parser.get_method().decode(),
            address.path,
            address.query or b"",
            self.headers,
            version,
            version != "1.0" and parser.should_keep_alive(),
            self.transport.is_closing,
        )
        if not {value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"} <= {b"chunked"}:
            raise Refused(400, OTHER_CODING)  # the parser would hand over a compressed body as it is
        self.in_head, self.headers = False, []  # trailers follow, which nobody reads
        self.requests.append(request)
        request.answer = self.app.admit(request)
        if request.has_body:
            self.go_on()

    def head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        self.advanced, request = True, self.requests[-1]
        if request.answer is None:
            request.body += body
            if len(request.body) > self.app.settings.max_body:
                request.answer = self.app.refuse(request, Refused(413, BODY_TOO_LARGE))
                self.go_on()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.advanced = self.requests[-1].complete = True
            self.go_on()

    # Answers

    def is_busy(self) -> bool:
        """Whether something is answered, or not read, before more is parsed."""
        return self.write_paused or bool(self.requests and self.requests[0].complete and not self.sent)

    def go_on(self) -> None:
        """Answer the oldest requests as far as possible now."""
        while self.requests and not (self.answering or self.write_paused or self.transport.is_closing()):
            request = self.requests[0]
            if request.answer is None:
                if request.complete:
                    self.answering = True
                    self.server_state.tasks.add(asyncio.get_running_loop().create_task(self.respond(request)))
                elif request.expects_continue:
                    request.expects_continue = False
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            if not self.sent:
                self.send(request, request.answer)
                self.sent, self.since = True, time.monotonic()
            if not (request.complete and request.keep_alive):
                return
            self.requests.popleft()
            self.sent = False

    async def respond(self, request: Request) -> None:
        try:
            request.answer = await self.app.answer(request)
        finally:
            self.server_state.tasks.discard(asyncio.current_task())
        self.answering = False
        self.go_on()
        self.parse()

    def send(self, request: Request, answer: Answer) -> None:
        """Where the client still sends its body, the connection is closed after the answer, unless the server only has
        too much to do.

        What the client still sends is read and discarded until it closes or the timeout ends: a connection that is
        closed with unread data is reset, and the client may lose the answer.
        """
        discards = answer.status == 503 and not request.expects_continue
        if self.stopping or not (request.complete or discards):
            request.keep_alive = False
        self.transport.write(as_http(request, answer, self.server_state.default_headers))
        if not request.keep_alive:
            self.refused = True
            if request.complete or answer.status == 408 or not self.transport.can_write_eof():
                self.transport.close()
            else:
                self.transport.write_eof()

    def refuse(self, reason: Refused) -> None:
        """Refuse the request that is being received, after the answers to those before it, and close."""
        self.refused = True
        if not self.requests or self.requests[-1].complete:  # its head is not complete
            self.requests.append(Request("", b"", b"", self.headers))
        request = self.requests[-1]
        request.keep_alive = False
        if request.answer is None:
            request.answer = self.app.refuse(request, reason)
        elif self.sent:
            self.transport.close()
        self.go_on()

    # Time, number and stop

    def check(self, now: float) -> None:
        """Close what has taken too long."""
        seconds, unread = self.app.settings.request_timeout, self.transport.get_write_buffer_size()
        if unread != self.unread:  # the client has read something
            self.unread, self.unread_since = unread, now
        if unread:
            if now - self.unread_since > seconds:
                self.reset()
        elif self.is_busy():
            return
        elif self.refused or self.sent:
            if now - self.since > seconds:
                self.transport.abort()
        elif self.in_head or self.requests:
            if now - self.since > seconds:
                part = "request" if self.in_head else "body"
                self.refuse(Refused(408, f"the {part} was not received within {seconds:g} seconds"))
        elif now - self.since > KEEP_ALIVE:
            self.transport.close()

    def reset(self) -> None:
        """Close at once. Otherwise the kernel would hold what the client has not read, for minutes."""
        client = self.transport.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def is_idle(self) -> bool:
        """No request is being received, answered or refused."""
        busy = self.requests or self.in_head or self.refused
        return not busy and not self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def close_an_idle_connection(self) -> bool:
        """Close the one that has been idle longest, those without any request first; whether there is one."""
        others: set[Connection] = self.connections - {self}  # type: ignore[assignment]
        idle = [connection for connection in others if connection.is_idle()]
        if idle:
            min(idle, key=lambda connection: (connection.was_asked, connection.since)).transport.close()
        return bool(idle)

    def shutdown(self) -> None:
        """The server stops. A request that is on its way is still answered, and the answer announces the end."""
        self.stopping = True
        asyncio.get_running_loop().call_later(CLOSING_GRACE, self.stop_reading)

    def stop_reading(self) -> None:
        if not self.requests or self.sent:
            self.transport.close()

    def give_up(self) -> None:
        if self.requests:
            self.transport.abort()


def check_all(connections: Sequence[Connection]) -> None:
    """Close what has taken too long, and those with the most unread bytes where too many wait: a client that reads
    slowly may take for ever. Called once a second: a timer for each connection would cost more than the rest of a
    request's handling. The clock is not that of the day, which may be set back."""
    now = time.monotonic()
    for connection in connections:
        connection.check(now)
    are_open = [connection for connection in connections if not connection.transport.is_closing()]
    by_unread = sorted(are_open, key=lambda connection: connection.unread)
    unread = sum([connection.unread for connection in by_unread])
    while unread > MOST_UNREAD:
        largest = by_unread.pop()
        unread -= largest.unread
        largest.reset()


def as_http(request: Request, answer: Answer, more_headers: Iterable[Header]) -> bytes:
    headers = [*more_headers, *answer.headers]
    if answer.status != 204:
        headers += [(b"content-type", answer.media_type), (b"content-length", b"%d" % len(answer.content))]
    if not request.keep_alive:
        headers.append(CLOSE)
    head = STATUS_LINES[answer.status] + b"".join([b"%s: %s\r\n" % header for header in headers]) + b"\r\n"
    return head if request.method == "HEAD" else head + answer.content
