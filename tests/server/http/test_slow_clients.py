"""Clients that are slow, idle, gone or many: the server closes them in time and answers the others
meanwhile."""

import json
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.server.raw import Client, head, post, reset
from tests.server.server_process import Server, serving, until

TIMEOUT = 2.0  # seconds
BATCH = "/v1/recommend/batch"
RECOMMEND = "/v1/recommend"
BODY = json.dumps({"session": ["i3"]}).encode()
COUNTABLE = Path("/proc/self/fd").is_dir()
countable = pytest.mark.skipif(
    not COUNTABLE, reason="the open files of a process can't be counted here"
)


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--request-timeout", TIMEOUT, "--log-requests") as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def baseline(server: Server) -> int:
    """The files that the server has open before any client connects; later it may keep a few more
    open."""
    return server.open_files() if COUNTABLE else 0


def unfinished(length: int) -> bytes:
    """The head of a request whose body is still to come."""
    return head("POST", RECOMMEND, f"Content-Length: {length}")


def answers(server: Server, times: int = 1) -> bool:
    return all(server.recommend("i3", k=1).status == 200 for _ in range(times))


def statuses(server: Server, path: str, since: int = 0) -> list[int]:
    """Of the requests in the log of the server."""
    return [
        line["status"]
        for line in server.log[since:]
        if line["message"] == "request" and line["path"] == path
    ]


def test_a_body_that_is_never_completed(server: Server) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(50)]
        for client in clients:
            client.sendall(unfinished(100) + b'{"session"')
        assert answers(server, times=20)
        for client in clients:
            answer = client.read()
            assert answer.status == 408
            assert "2 seconds" in answer.error
            assert client.rest() == b""  # and the connection is closed
    until(lambda: statuses(server, RECOMMEND).count(408) == 50)


def test_a_body_that_comes_byte_by_byte(server: Server) -> None:
    with Client(server) as fresh, Client(server) as used:
        used.sendall(post(RECOMMEND, BODY))
        assert used.read().status == 200
        for client in (fresh, used):
            client.sendall(unfinished(10_000))
            answer = trickled(client.socket, server)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"2 seconds" in answer


def test_a_body_in_chunks_of_a_byte(server: Server) -> None:
    def answer() -> bytes:
        with Client(server) as client:
            client.sendall(head("POST", RECOMMEND, "Transfer-Encoding: chunked"))
            client.sendall(b"1\r\n \r\n" * 1100)
            assert answers(server)
            return client.rest()

    # On a busy machine the time for a request may be over first.
    until(lambda: re.match(rb"HTTP/1.1 400 .*too many small chunks", answer(), re.S))


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin", [b"POST /v1 HTTP/1.1\r\nX: ", b""], ids=["unfinished", "silent"]
)
def test_a_connection_without_a_whole_head_is_closed(
    server: Server, begin: bytes
) -> None:
    with Client(server) as client:
        client.sendall(begin)
        assert client.rest() == b""


def trickled(client: socket.socket, server: Server) -> bytes:
    """Send a byte now and then until the server closes; returns its answer. Other clients are
    answered meanwhile."""
    client.settimeout(0.1)
    answer = b""
    for _ in range(10_000):
        assert answers(server)
        try:
            client.sendall(b"x")
            chunk = client.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            return answer
        if not chunk:
            return answer
        answer += chunk
    raise AssertionError("the connection was never closed")


def test_answers_that_are_never_read(server: Server) -> None:
    session = [f"{number:>100}" for number in range(10_000)]
    body = json.dumps({"session": session}).encode()
    with ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(Client(server))
            client.socket.settimeout(0.3)
            with suppress(TimeoutError):  # the server stops reading
                client.sendall(post(RECOMMEND, body) * 30)
        assert answers(server, times=20)
    assert answers(server)


@pytest.mark.parametrize("path", [RECOMMEND, "/v1/explain"])
def test_clients_that_disconnect_early(server: Server, path: str) -> None:
    body: dict[str, object] = {"session": [f"i{n % 30}" for n in range(1000)]}
    if path == "/v1/explain":
        body["item"] = "i3"
    content = json.dumps(body).encode()
    request = post(path, content)
    logged = len(server.log)
    size = len(request)
    for sent in (1, 20, size - len(content), size // 2, size - 1, size):
        for close in (socket.socket.close, reset):
            with socket.create_connection(server.address) as client:
                client.sendall(request[:sent])
                close(client)
    assert answers(server, times=20)
    # None of them is an error of the server.
    assert set(statuses(server, path, since=logged)) <= {200, 400, 499}
    assert not [line for line in server.log[logged:] if line["level"] == "error"]


def test_a_batch_is_not_computed_further_once_its_client_has_left(
    server: Server,
) -> None:
    session = ["unknown", *(f"i{n % 30}" for n in range(50))]
    body = json.dumps({"sessions": [session] * 1000, "diversify": 0.5}).encode()

    def computed() -> float:
        """Sessions: each of them counts a click on an unknown item when it is computed."""
        return server.metric("posrec_unknown_items_total")

    def leave_after(turns: int) -> int:
        """The status that is logged for a client that leaves after some turns of others."""
        logged = len(server.log)
        with socket.create_connection(server.address) as client:
            client.sendall(post(BATCH, body))
            for _ in range(turns):
                assert server.get("/v1/similar/i3").status == 200
            reset(client)
        return int(until(lambda: statuses(server, BATCH, since=logged))[0])

    before = computed()
    tried: list[int] = []

    def has_left_in_time() -> bool:
        """The first ones may leave before their body was received. The server may have no room
        while it computes what clients of other tests have left behind."""
        tried.append(leave_after(2 ** tried.count(400)))
        return tried[-1] == 499

    until(has_left_in_time)
    assert computed() < before + 1000 * len(tried)
    assert answers(server)


@countable
def test_2000_idle_connections(server: Server, baseline: int) -> None:
    number = 2000
    needed = number + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"no more than {hard} files may be open here")
    raised = (max(soft, needed), hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, raised)
    resource.prlimit(server.worker, resource.RLIMIT_NOFILE, raised)
    try:
        with ExitStack() as stack:
            idle = [stack.enter_context(Client(server)) for _ in range(number)]
            until(lambda: server.open_files() >= number)
            assert answers(server, times=50)
            # Each of them is kept open for its next request, longer than an unfinished one.
            some = idle[::20]
            for client in (*some, *some):
                client.sendall(post(RECOMMEND, BODY))
                assert client.read().status == 200
            wait_for_a_timeout(server)
            assert server.open_files() >= number
        until(lambda: server.open_files() < baseline + 20)
        assert answers(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_for_a_timeout(server: Server) -> None:
    """Until the server has closed a connection whose request began now."""
    with Client(server) as client:
        client.sendall(unfinished(100))
        assert client.read().status == 408
