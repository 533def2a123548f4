"""Clients that are slow, silent, gone or many: they are let go in time, and the others are answered meanwhile."""

import http.client
import json
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.server.server_process import Server, serving, until

pytest.importorskip("litestar")
pytest.importorskip("uvicorn")

PATIENCE = 2.0  # seconds
PATHS = ("/v1/recommend", "/v1/explain")
both = pytest.mark.parametrize("path", PATHS)
BODY = json.dumps({"session": ["i3"]}).encode()
COUNTABLE = Path("/proc/self/fd").is_dir()
countable = pytest.mark.skipif(not COUNTABLE, reason="a server's open files can't be counted here")


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--patience", PATIENCE, "--log-requests") as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def quiet(server: Server) -> int:
    """Files that the server has open before anybody came; later ones may leave it with a few more of its own."""
    return server.open_files() if COUNTABLE else 0


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *more, "", ""]
    return "\r\n".join(lines).encode()


def connected(server: Server, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(server.address, timeout=30))


def well(server: Server) -> bool:
    return server.recommend("i3", k=1).status == 200


def is_open(client: socket.socket) -> bool:
    """Whether nothing came, not even the end."""
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


@both
def test_a_head_and_then_nothing(server: Server, path: str) -> None:
    with ExitStack() as stack:
        waiting = [connected(server, stack) for _ in range(50)]
        for one in waiting:
            one.sendall(head(path, 100) + b'{"session"')
        assert all(well(server) for _ in range(20))
        for one in waiting:
            assert read_answer(one) == (408, {"error": "the body did not come within 2 seconds"})
            assert one.recv(1) == b""  # and the connection is closed
    until(lambda: Counter((line["path"], line["status"]) for line in server.said("request"))[path, 408] == 50)


@both
def test_a_body_that_comes_byte_by_byte(server: Server, path: str) -> None:
    with ExitStack() as stack:
        client = connected(server, stack)
        client.sendall(head(path, 10_000))
        answer = trickled(client, server)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not come within 2 seconds" in answer


def test_a_head_that_comes_byte_by_byte(server: Server) -> None:
    """Nothing is asked before a head ends, so nothing is answered: the connection is closed."""
    with ExitStack() as stack:
        fresh, used = connected(server, stack), connected(server, stack)
        used.sendall(head("/v1/recommend", len(BODY)) + BODY)
        assert read_answer(used)[0] == 200
        for client in (fresh, used):
            client.sendall(b"POST /v1/recommend HTTP/1.1\r\nX: ")
            assert trickled(client, server) == b""


def trickled(client: socket.socket, server: Server) -> bytes:
    """What comes back to a client that sends a byte now and then, until the server closes; others are answered."""
    client.settimeout(0.1)
    answer, end = b"", time.monotonic() + 30
    while time.monotonic() < end:
        assert well(server)
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
    raise AssertionError("it was never closed")


def test_a_slow_body_that_comes_in_time(server: Server) -> None:
    with ExitStack() as stack:
        client = connected(server, stack)
        client.sendall(head("/v1/recommend", len(BODY)))
        for place in range(0, len(BODY), 5):
            client.sendall(BODY[place : place + 5])
            time.sleep(PATIENCE / 20)
        assert read_answer(client)[0] == 200


@countable
def test_answers_that_are_never_read(server: Server) -> None:
    """Far more is answered than the sockets' buffers hold."""
    before = server.open_files()
    body = json.dumps({"session": [f"{number:>100}" for number in range(10_000)]}).encode()
    with ExitStack() as stack:
        clients = [connected(server, stack) for _ in range(5)]
        for client in clients:
            client.settimeout(0.3)
            with suppress(TimeoutError):  # the server stops reading
                client.sendall((head("/v1/recommend", len(body)) + body) * 30)
        assert all(well(server) for _ in range(20))
        until(lambda: server.open_files() <= before)
    assert well(server)


@both
def test_clients_that_leave_in_the_middle(server: Server, path: str) -> None:
    body = json.dumps({"session": [f"i{n % 30}" for n in range(1000)], **({} if "rec" in path else {"item": "i3"})})
    whole = head(path, len(body)) + body.encode()
    logged = len(server.log)
    for place in (1, 20, len(head(path, len(body))), len(whole) // 2, len(whole) - 1, len(whole)):
        for abruptly in (False, True):
            with socket.create_connection(server.address) as client:
                client.sendall(whole[:place])
                if abruptly:  # a reset rather than a goodbye
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert all(well(server) for _ in range(20))
    noted = [line["status"] for line in server.log[logged:] if line["message"] == "request" and line["path"] == path]
    assert set(noted) <= {200, 499}  # it is nobody's error, and above all not the server's
    assert not [line for line in server.log[logged:] if line["level"] == "error"]


@countable
def test_2000_idle_connections(server: Server, quiet: int) -> None:
    many = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < many + 500:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many + 500), hard))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (max(soft, many + 500), hard))
    try:
        with ExitStack() as stack:
            idle = [connected(server, stack) for _ in range(many)]
            until(lambda: server.open_files() >= quiet + many)
            assert all(well(server) for _ in range(50))
            for _ in range(2):  # they are kept for the next request
                for one in idle[::20]:
                    one.sendall(head("/v1/recommend", len(BODY)) + BODY)
                assert {read_answer(one)[0] for one in idle[::20]} == {200}
            time.sleep(PATIENCE + 2)  # silence is borne longer than half a request
            assert all(is_open(one) for one in idle)
        until(lambda: server.open_files() < quiet + 20)
        assert well(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
