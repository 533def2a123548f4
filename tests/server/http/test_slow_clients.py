"""Clients that are slow, idle, gone or many: the server closes them in time and answers the others meanwhile."""

import asyncio
import http.client
import json
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

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
from tests.server.server_process import Server, serving, until

pytest.importorskip("uvicorn")

TIMEOUT = 2.0  # seconds
BATCH = "/v1/recommend/batch"
PATH = "/v1/recommend"
BODY = json.dumps({"session": ["i3"]}).encode()
COUNTABLE = Path("/proc/self/fd").is_dir()
countable = pytest.mark.skipif(not COUNTABLE, reason="the open files of a process can't be counted here")


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--request-timeout", TIMEOUT, "--log-requests") as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def baseline(server: Server) -> int:
    """The files that the server has open before any client connects; later it may keep a few more open."""
    return server.open_files() if COUNTABLE else 0


def head(path: str, length: int) -> bytes:
    return request_head("POST", path, f"Content-Length: {length}")


def connected(server: Server, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(server.address, timeout=120))


def answers(server: Server) -> bool:
    return server.recommend("i3", k=1).status == 200


def is_open(client: socket.socket) -> bool:
    """Whether the server has neither sent anything nor closed the connection."""
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    return False


def read_answer(client: socket.socket) -> tuple[int, dict[str, str]]:
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.status, json.loads(answer.read())


def test_a_body_that_is_never_completed(server: Server) -> None:
    with ExitStack() as stack:
        waiting = [connected(server, stack) for _ in range(50)]
        for one in waiting:
            one.sendall(head(PATH, 100) + b'{"session"')
        assert all(answers(server) for _ in range(20))
        for one in waiting:
            assert read_answer(one) == (408, {"error": "the body was not received within 2 seconds"})
            assert one.recv(1) == b""  # and the connection is closed
    until(lambda: Counter((line["path"], line["status"]) for line in server.said("request"))[PATH, 408] == 50)


def test_a_body_that_comes_byte_by_byte(server: Server) -> None:
    with ExitStack() as stack:
        client = connected(server, stack)
        client.sendall(head(PATH, 10_000))
        answer = trickled(client, server)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"was not received within 2 seconds" in answer


def test_a_head_that_comes_byte_by_byte(server: Server) -> None:
    with ExitStack() as stack:
        fresh, used = connected(server, stack), connected(server, stack)
        used.sendall(head(PATH, len(BODY)) + BODY)
        assert read_answer(used)[0] == 200
        for client in (fresh, used):
            client.sendall(b"POST /v1/recommend HTTP/1.1\r\nX: ")
            answer = trickled(client, server)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"the request was not received within 2 seconds" in answer


def trickled(client: socket.socket, server: Server) -> bytes:
    """Send a byte now and then until the server closes; returns its answer. Other clients are answered meanwhile."""
    client.settimeout(0.1)
    answer, end = b"", time.monotonic() + 120
    while time.monotonic() < end:
        assert answers(server)
        try:
            client.sendall(b"x")
            piece = client.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            return answer
        if not piece:
            return answer
        answer += piece
    raise AssertionError("the connection was never closed")


@countable
def test_answers_that_are_never_read(server: Server) -> None:
    """The answers are far larger than the buffers of the sockets."""
    before = server.open_files()
    body = json.dumps({"session": [f"{number:>100}" for number in range(10_000)]}).encode()
    with ExitStack() as stack:
        clients = [connected(server, stack) for _ in range(5)]
        for client in clients:
            client.settimeout(0.3)
            with suppress(TimeoutError):  # the server stops reading
                client.sendall((head(PATH, len(body)) + body) * 30)
        assert all(answers(server) for _ in range(20))
        until(lambda: server.open_files() <= before)
    assert answers(server)


@pytest.mark.parametrize("path", [PATH, "/v1/explain"])
def test_clients_that_disconnect_early(server: Server, path: str) -> None:
    body = json.dumps({"session": [f"i{n % 30}" for n in range(1000)], **({} if path == PATH else {"item": "i3"})})
    whole = head(path, len(body)) + body.encode()
    logged = len(server.log)
    for place in (1, 20, len(head(path, len(body))), len(whole) // 2, len(whole) - 1, len(whole)):
        for abruptly in (False, True):
            with socket.create_connection(server.address) as client:
                client.sendall(whole[:place])
                if abruptly:  # by a reset
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert all(answers(server) for _ in range(20))
    statuses = [line["status"] for line in server.log[logged:] if line["message"] == "request" and line["path"] == path]
    assert set(statuses) <= {200, 499}  # not an error of the server
    assert not [line for line in server.log[logged:] if line["level"] == "error"]


def test_a_batch_is_not_computed_further_once_its_client_has_left(server: Server) -> None:
    body = json.dumps({"sessions": [["unknown", *(f"i{n % 30}" for n in range(50))]] * 1000, "diversify": 0.5}).encode()

    def computed() -> float:
        """Sessions: each of them counts a click on an unknown item when it is computed."""
        return server.metric("posrec_unknown_items_total")

    before = computed()
    with socket.create_connection(server.address) as client:
        client.sendall(head(BATCH, len(body)) + body)
        until(lambda: computed() > before)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    until(lambda: [line for line in server.said("request") if (line["path"], line["status"]) == (BATCH, 499)])
    assert computed() < before + 1000
    assert answers(server)


@countable
def test_2000_idle_connections(server: Server, baseline: int) -> None:
    many = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < many + 500:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many + 500), hard))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (max(soft, many + 500), hard))
    try:
        with ExitStack() as stack:
            idle = [connected(server, stack) for _ in range(many)]
            until(lambda: server.open_files() >= many)
            assert all(answers(server) for _ in range(50))
            for one in (*idle[::20], *idle[::20]):  # each of them is kept open for its next request
                one.sendall(head(PATH, len(BODY)) + BODY)
                assert read_answer(one)[0] == 200
            time.sleep(TIMEOUT + 2)  # an idle connection may stay open for longer than an unfinished request
            assert all(is_open(one) for one in idle)
        until(lambda: server.open_files() < baseline + 20)
        assert answers(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def an_application(request_timeout: float = 10) -> Application:
    return Application(ServerSettings(("run",), request_timeout=request_timeout), Metrics(None), BackgroundQueue(1))


def a_server(application: Application) -> serve.Server:
    config = uvicorn.Config(application, log_config=None, proxy_headers=False)  # type: ignore[arg-type]
    config.load()
    return serve.Server(config)


@asynccontextmanager
async def one_connection(
    application: Application, server: serve.Server | None = None
) -> AsyncIterator[tuple[Connection, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection in this process, whose `check` can be called with any time; and the client's side of it."""
    server = server or a_server(application)
    ours, theirs = socket.socketpair()
    connection = Connection(server.config, server.server_state, {})
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    yield connection, reader, writer
    writer.close()


def test_neither_computing_nor_an_unfinished_request_behind_it_costs_a_request_its_answer() -> None:
    async def play() -> bytes:
        application, release = an_application(), asyncio.Event()

        @application.route("GET", "/slow")
        async def slow() -> str:
            await release.wait()
            return "done"

        async with one_connection(application) as (connection, reader, writer):
            for sent in (request_head("GET", "/slow"), b"GET /slow HT"):
                writer.write(sent)
                while not (connection.requests if sent.endswith(b"\n") else connection.unparsed):
                    await asyncio.sleep(0.001)
                connection.check(time.monotonic() + 1000)
                assert not connection.transport.is_closing()
            release.set()
            answer = await reader.readuntil(b'"done"')
            connection.check(time.monotonic() + 1000)
            return answer + await reader.read()

    answer = asyncio.run(play())
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b'"done"HTTP/1.1 408 ' in answer


def test_an_overloaded_server_refuses_at_the_head_and_reads_on() -> None:
    """The body is discarded, however it arrives, and the connection is used again; other requests are not refused."""

    async def play() -> list[tuple[bytes, bytes]]:
        application, busy = an_application(), [True]

        def admit() -> None:
            if busy:
                raise Refused(503, "too much to do")

        @application.route("POST", "/work", admit=admit)
        async def work(data: dict[str, str]) -> str:
            return data["name"]

        @application.route("POST", "/other")
        async def other(data: dict[str, str]) -> str:
            return data["name"]

        async with one_connection(application) as (connection, reader, writer):

            async def answer() -> tuple[bytes, bytes]:
                lines = await reader.readuntil(b"\r\n\r\n")
                length = int(lines.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                return lines[9:12], await reader.readexactly(length)

            body = b'{"name":"anna"}'
            answers = []
            writer.write(head("/work", len(body)))
            answers.append(await answer())
            assert not connection.is_idle()
            for place in range(len(body)):
                writer.write(body[place : place + 1])
            writer.write(head("/work", len(body)) + body)
            answers.append(await answer())
            writer.write(head("/other", len(body)) + body)
            answers.append(await answer())
            busy.clear()
            writer.write(head("/work", len(body)) + body)
            answers.append(await answer())
            busy.append(True)
            writer.write(head("/work", len(body)) + body[:5])  # never completed
            answers.append(await answer())
            connection.check(time.monotonic() + 1000)
            assert connection.transport.is_closing()
            return answers

    refused = (b"503", b'{"error":"too much to do"}')
    assert asyncio.run(play()) == [refused, refused, (b"200", b'"anna"'), (b"200", b'"anna"'), refused]


def test_a_refused_body_is_not_read_for_ever() -> None:
    async def play() -> bytes:
        application = an_application()

        @application.route("POST", "/work")
        async def work(data: dict[str, str]) -> None:
            raise AssertionError("the body is too large")

        async with one_connection(application) as (connection, reader, writer):
            writer.write(head("/work", 1 << 40))
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.write(b" " * 100_000)
            connection.check(time.monotonic())
            assert not connection.transport.is_closing()
            connection.check(time.monotonic() + 1000)
            assert connection.transport.is_closing()
            return answer

    assert asyncio.run(play()).startswith(b"HTTP/1.1 413 ")


def test_a_slow_head_is_refused_although_the_clock_was_set_back() -> None:
    async def play() -> bytes:
        application = an_application(request_timeout=0)
        server = a_server(application)
        server.last_notified = time.time() + 3600
        async with one_connection(application, server) as (connection, reader, writer):
            writer.write(b"GET /slow HT")
            while not connection.in_head:
                await asyncio.sleep(0.001)
            await server.on_tick(0)
            return await reader.read()

    assert asyncio.run(play()).startswith(b"HTTP/1.1 408 ")


def test_while_the_server_stops_an_unfinished_body_is_refused_in_time() -> None:
    async def play() -> bytes:
        application = an_application(request_timeout=0)

        @application.route("POST", "/work")
        async def work(data: dict[str, str]) -> None:
            raise AssertionError("the body is not complete")

        server = a_server(application)
        server.servers, server.lifespan = [], LifespanOff(server.config)
        async with one_connection(application, server) as (connection, reader, writer):
            writer.write(head("/work", 100) + b"{")
            while not connection.requests:
                await asyncio.sleep(0.001)
            stopping = asyncio.create_task(server.shutdown())
            answer = await reader.read()
            await stopping
            return answer

    assert asyncio.run(play()).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_closes_its_sending_side_has_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks the same as one that has closed its connection, for which no more is computed."""
    monkeypatch.setattr(module, "LEAVING_GRACE", 0.05)

    async def play() -> bytes:
        application, has_left = an_application(), asyncio.Event()

        @application.route("GET", "/slow")
        async def slow(request: Request) -> str:
            while not request.has_left():
                await asyncio.sleep(0.001)
            has_left.set()
            raise Disconnected

        async with one_connection(application) as (_, reader, writer):
            writer.write(request_head("GET", "/slow"))
            writer.write_eof()
            await asyncio.wait_for(has_left.wait(), 60)
            return await reader.read()

    assert asyncio.run(play()) == b""


def test_where_too_much_is_unread_the_largest_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may read so slowly that it never ends, yet often enough."""
    monkeypatch.setattr(module, "MOST_UNREAD", 10 << 20)

    async def play() -> list[bool]:
        application = an_application()

        @application.route("GET", "/large")
        async def large() -> str:
            return "x" * (8 << 20)

        @application.route("GET", "/small")
        async def small() -> str:
            return "x" * (4 << 20)

        server = a_server(application)
        async with one_connection(application, server) as first, one_connection(application, server) as second:
            for path, (connection, _, writer) in (("/large", first), ("/small", second)):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(request_head("GET", path))
                while not connection.transport.get_write_buffer_size():
                    await asyncio.sleep(0.001)
                await server.on_tick(0)
            return [connection.transport.is_closing() for connection, _, _ in (first, second)]

    assert asyncio.run(play()) == [True, False]


def test_a_silent_connection_is_closed_later() -> None:
    async def play() -> bytes:
        async with one_connection(an_application()) as (connection, reader, _):
            connection.check(time.monotonic() + KEEP_ALIVE - 5)
            assert not connection.transport.is_closing()
            connection.check(time.monotonic() + KEEP_ALIVE + 5)
            return await reader.read()

    assert asyncio.run(play()) == b""
