"""Clients that are slow, idle, gone or many: the server closes them in time and answers the others
meanwhile."""

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

from tests.server.raw import Client
from tests.server.raw import head as request_head
from tests.server.server_process import Server, serving, until

pytest.importorskip("granian")

TIMEOUT = 2.0  # seconds
BATCH = "/v1/recommend/batch"
PATH = "/v1/recommend"
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


def head(path: str, length: int) -> bytes:
    return request_head("POST", path, f"Content-Length: {length}")


def answers(server: Server) -> bool:
    return server.recommend("i3", k=1).status == 200


def test_a_body_that_is_never_completed(server: Server) -> None:
    with ExitStack() as stack:
        waiting = [stack.enter_context(Client(server)) for _ in range(50)]
        for one in waiting:
            one.sendall(head(PATH, 100) + b'{"session"')
        assert all(answers(server) for _ in range(20))
        for one in waiting:
            answer = one.read()
            assert (answer.status, answer.json()) == (
                408,
                {"error": "the body was not received within 2 seconds"},
            )
            assert one.rest() == b""  # and the connection is closed
    until(
        lambda: (
            Counter((line["path"], line["status"]) for line in server.said("request"))[
                PATH, 408
            ]
            == 50
        )
    )


def test_a_body_that_comes_byte_by_byte(server: Server) -> None:
    with Client(server) as fresh, Client(server) as used:
        used.sendall(head(PATH, len(BODY)) + BODY)
        assert used.read().status == 200
        for client in (fresh, used):
            client.sendall(head(PATH, 10_000))
            answer = trickled(client.socket, server)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"the body was not received within 2 seconds" in answer


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
    end = time.monotonic() + 120
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


def test_answers_that_are_never_read(server: Server) -> None:
    body = json.dumps(
        {"session": [f"{number:>100}" for number in range(10_000)]}
    ).encode()
    with ExitStack() as stack:
        for client in [stack.enter_context(Client(server)) for _ in range(5)]:
            client.socket.settimeout(0.3)
            with suppress(TimeoutError):  # the server stops reading
                client.sendall((head(PATH, len(body)) + body) * 30)
        assert all(answers(server) for _ in range(20))
    assert answers(server)


@pytest.mark.parametrize("path", [PATH, "/v1/explain"])
def test_clients_that_disconnect_early(server: Server, path: str) -> None:
    body = json.dumps(
        {
            "session": [f"i{n % 30}" for n in range(1000)],
            **({} if path == PATH else {"item": "i3"}),
        }
    )
    whole = head(path, len(body)) + body.encode()
    logged = len(server.log)
    for place in (
        1,
        20,
        len(head(path, len(body))),
        len(whole) // 2,
        len(whole) - 1,
        len(whole),
    ):
        for abruptly in (False, True):
            with socket.create_connection(server.address) as client:
                client.sendall(whole[:place])
                if abruptly:  # by a reset
                    client.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
    assert all(answers(server) for _ in range(20))
    statuses = [
        line["status"]
        for line in server.log[logged:]
        if line["message"] == "request" and line["path"] == path
    ]
    assert set(statuses) <= {200, 400, 499}  # not an error of the server
    assert not [line for line in server.log[logged:] if line["level"] == "error"]


def test_a_batch_is_not_computed_further_once_its_client_has_left(
    server: Server,
) -> None:
    body = json.dumps(
        {
            "sessions": [["unknown", *(f"i{n % 30}" for n in range(50))]] * 1000,
            "diversify": 0.5,
        }
    ).encode()

    def computed() -> float:
        """Sessions: each of them counts a click on an unknown item when it is computed."""
        return server.metric("posrec_unknown_items_total")

    before = computed()
    with socket.create_connection(server.address) as client:
        client.sendall(head(BATCH, len(body)) + body)
        until(lambda: computed() > before)
        client.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # a reset
    until(
        lambda: [
            line
            for line in server.said("request")
            if (line["path"], line["status"]) == (BATCH, 499)
        ]
    )
    assert computed() < before + 1000
    assert answers(server)


@countable
def test_2000_idle_connections(server: Server, baseline: int) -> None:
    many = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < many + 500:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many + 500), hard))
    resource.prlimit(
        server.worker, resource.RLIMIT_NOFILE, (max(soft, many + 500), hard)
    )
    try:
        with ExitStack() as stack:
            idle = [stack.enter_context(Client(server)) for _ in range(many)]
            until(lambda: server.open_files() >= many)
            assert all(answers(server) for _ in range(50))
            for one in (
                *idle[::20],
                *idle[::20],
            ):  # each of them is kept open for its next request
                one.sendall(head(PATH, len(BODY)) + BODY)
                assert one.read().status == 200
            time.sleep(
                TIMEOUT + 2
            )  # an idle connection may stay open for longer than an unfinished request
            assert server.open_files() >= many
        until(lambda: server.open_files() < baseline + 20)
        assert answers(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
