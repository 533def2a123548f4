"""A connection in this process: what is refused or closed when, by a clock that the tests set."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from uvicorn.lifespan.off import LifespanOff

from posrec.server import serve
from posrec.server.batching import BackgroundQueue
from posrec.server.http import connection as module
from posrec.server.http.application import Application
from posrec.server.http.connection import KEEP_ALIVE, Connection
from posrec.server.http.messages import Disconnected, Refused, Request
from posrec.server.metrics import Metrics
from posrec.server.settings import ServerSettings
from tests.server.raw import head as request_head


def head(path: str, length: int) -> bytes:
    return request_head("POST", path, f"Content-Length: {length}")


def in_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    return run


class OneConnection:
    """A connection in this process, whose `check` can be called with any time, and the client's side of it."""

    def __init__(self, request_timeout: float = 10) -> None:
        settings = ServerSettings(("run",), request_timeout=request_timeout)
        self.application = Application(settings, Metrics(None), BackgroundQueue(1))
        self.route = self.application.route
        config = uvicorn.Config(self.application, log_config=None, proxy_headers=False)  # type: ignore[arg-type]
        config.load()
        self.server = serve.Server(config)
        self.connection = Connection(config, self.server.server_state, {})

    def slow_route(self) -> asyncio.Event:
        """Add /slow, whose answer is computed when the event is set."""
        release = asyncio.Event()

        @self.route("GET", "/slow")
        async def slow() -> str:
            await release.wait()
            return "done"

        return release

    async def send(self, request: bytes) -> None:
        """The first time, connect."""
        if not hasattr(self, "writer"):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                ours, (theirs, _) = socket.create_connection(listener.getsockname()), listener.accept()
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self.connection, theirs)
            self.reader, self.writer = await asyncio.open_connection(sock=ours)
        self.writer.write(request)

    async def until(self, check: Callable[[Connection], object]) -> None:
        while not check(self.connection):
            await asyncio.sleep(0.001)

    async def answer(self) -> tuple[bytes, bytes]:
        """The status and the body of the next answer."""
        lines = await self.reader.readuntil(b"\r\n\r\n")
        length = int(lines.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return lines[9:12], await self.reader.readexactly(length)

    def is_closed_after(self, seconds: float) -> bool:
        self.connection.check(time.monotonic() + seconds)
        return self.connection.transport.is_closing()


@in_event_loop
async def test_neither_computing_nor_an_unfinished_request_behind_it_costs_a_request_its_answer() -> None:
    one = OneConnection()
    release = one.slow_route()
    await one.send(request_head("GET", "/slow"))
    await one.until(lambda connection: connection.requests)
    assert not one.is_closed_after(1000)
    await one.send(b"GET /slow HT")
    await one.until(lambda connection: connection.unparsed)
    assert not one.is_closed_after(1000)
    release.set()
    assert await one.answer() == (b"200", b'"done"')
    assert one.is_closed_after(1000)
    assert (await one.answer())[0] == b"408"


def test_an_answer_to_a_connection_that_was_cut_off_is_dropped() -> None:
    uvloop = pytest.importorskip("uvloop")  # whose transports raise an error where asyncio's do not
    errors: list[object] = []

    async def cut_off_while_computing() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        one = OneConnection()
        release = one.slow_route()
        await one.send(request_head("GET", "/slow"))
        await one.until(lambda connection: connection.answering)
        one.connection.reset()
        release.set()
        await one.until(lambda connection: not connection.answering)

    uvloop.run(asyncio.wait_for(cut_off_while_computing(), 60))
    assert errors == []


@in_event_loop
async def test_an_overloaded_server_refuses_at_the_head_and_reads_on() -> None:
    """The body is discarded, however it arrives, and the connection is used again; other requests are not refused."""
    one, busy, body = OneConnection(), [True], b'{"name":"anna"}'
    refused, answered = (b"503", b'{"error":"too much to do"}'), (b"200", b'"anna"')

    def admit() -> None:
        if busy:
            raise Refused(503, "too much to do")

    async def name_of(data: dict[str, str]) -> str:
        return data["name"]

    one.route("POST", "/work", admit=admit)(name_of)
    one.route("POST", "/other")(name_of)
    await one.send(head("/work", len(body)))
    assert await one.answer() == refused
    assert not one.connection.is_idle()
    for place in range(len(body)):
        await one.send(body[place : place + 1])
    for path, expected in (("/work", refused), ("/other", answered)):
        await one.send(head(path, len(body)) + body)
        assert await one.answer() == expected
    busy.clear()
    await one.send(head("/work", len(body)) + body)
    assert await one.answer() == answered
    busy.append(True)
    await one.send(head("/work", len(body)) + body[:5])  # never completed
    assert await one.answer() == refused
    assert one.is_closed_after(1000)


@in_event_loop
async def test_a_refused_body_is_not_read_for_ever() -> None:
    one = OneConnection()

    @one.route("POST", "/work")
    async def work(data: dict[str, str]) -> None:
        raise AssertionError("the body is too large")

    await one.send(head("/work", 1 << 40))
    assert (await one.answer())[0] == b"413"
    await one.send(b" " * 100_000)
    assert not one.is_closed_after(0)
    assert one.is_closed_after(1000)


@in_event_loop
async def test_while_the_server_stops_an_unfinished_body_is_refused_in_time() -> None:
    one = OneConnection(request_timeout=0)
    one.server.servers, one.server.lifespan = [], LifespanOff(one.server.config)

    @one.route("POST", "/work")
    async def work(data: dict[str, str]) -> None:
        raise AssertionError("the body is not complete")

    await one.send(head("/work", 100) + b"{")
    await one.until(lambda connection: connection.requests)
    checking = asyncio.create_task(one.server.keep_checking())
    await one.server.shutdown()
    checking.cancel()
    assert (await one.answer())[0] == b"408"


@in_event_loop
async def test_a_client_that_closes_its_sending_side_has_left_after_a_while() -> None:
    """It looks the same as one that has closed its connection, for which no more is computed."""
    one, has_left = OneConnection(), asyncio.Event()

    @one.route("GET", "/slow")
    async def slow(request: Request) -> str:
        while not request.has_left():
            await asyncio.sleep(0.001)
        has_left.set()
        raise Disconnected

    await one.send(request_head("GET", "/slow"))
    one.writer.write_eof()
    await has_left.wait()
    assert await one.reader.read() == b""


def test_where_too_much_is_unread_the_largest_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may read so slowly that it never ends, yet often enough."""
    monkeypatch.setattr(module, "MOST_UNREAD", 10 << 20)

    @in_event_loop
    async def ask_for_both() -> None:
        large, small = OneConnection(), OneConnection()
        for one, megabytes in ((large, 8), (small, 4)):

            async def text(megabytes: int = megabytes) -> str:
                return "x" * (megabytes << 20)

            one.route("GET", "/text")(text)
            await one.send(b"")
            one.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await one.send(request_head("GET", "/text"))
            await one.until(lambda connection: connection.transport.get_write_buffer_size())
        for _ in range(2):
            module.check_all([large.connection, small.connection])
        assert [one.connection.transport.is_closing() for one in (large, small)] == [True, False]

    ask_for_both()


@in_event_loop
async def test_a_silent_connection_is_closed_later() -> None:
    one = OneConnection()
    await one.send(b"")
    assert not one.is_closed_after(KEEP_ALIVE - 5)
    assert one.is_closed_after(KEEP_ALIVE + 5)
    assert await one.reader.read() == b""
