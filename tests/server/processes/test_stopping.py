"""A server that stops answers what it has accepted, refuses the rest, and leaves nothing behind."""

import http.client
import json
import signal
import socket
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from posrec.server.metrics import is_alive
from tests.helpers import slowly
from tests.server.processes.listening import SOCKETS, listening
from tests.server.raw import ask, head, recommend
from tests.server.server_process import Server, children, serving, until

BODY = json.dumps({"session": ["i3", "i4"], "item": "i5"}).encode()
pytestmark = pytest.mark.skipif(not SOCKETS.is_file(), reason="there is no /proc here")


class HeldRequest:
    """A request that the server has accepted and waits for: it can't stop before it is answered."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        connection = socket.create_connection(server.address, timeout=120)
        self.connection = stack.enter_context(connection)
        length = f"Content-Length: {len(BODY)}"
        connection.sendall(head("POST", "/v1/explain", length, "Expect: 100-continue"))
        assert connection.recv(4096).startswith(b"HTTP/1.1 100")

    def assert_answered(self) -> None:
        self.connection.sendall(BODY)
        assert self.connection.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_clients_are_answered_or_refused(trained: Path, workers: int) -> None:
    outcomes: list[str] = []
    stop = threading.Event()

    def ask_again_and_again() -> None:
        while not stop.is_set():
            try:
                outcomes.append(str(ask(server, recommend()).status))
            except ConnectionRefusedError:
                outcomes.append("refused")
                return
            except (ConnectionError, http.client.HTTPException):
                outcomes.append("lost")

    with serving(trained, "--workers", workers) as server, ExitStack() as stack:
        server.wait_for("serving", workers)
        held = [HeldRequest(server, stack) for _ in range(8)]
        clients = [threading.Thread(target=ask_again_and_again) for _ in range(6)]
        for client in clients:
            client.start()
        until(lambda: len(outcomes) > 50)
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join(60)  # each ends when it is refused
        stop.set()
        counts = Counter(outcomes)
        assert set(counts) - {"lost"} == {"200", "refused"}
        assert counts["refused"] == 6
        # The kernel resets what waits in the queue of a socket when it is closed.
        assert counts["lost"] <= 6
        for request in held:
            request.assert_answered()
        assert server.process.wait(60) == 0


def test_an_accepted_request_is_answered_while_the_server_stops(trained: Path) -> None:
    with serving(trained) as server, ExitStack() as stack:
        held = HeldRequest(server, stack)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: listening(server) == 0)
        held.assert_answered()
        assert server.process.wait(60) == 0


@pytest.mark.parametrize(
    ("workers", "number"), [slowly(1, signal.SIGTERM), (2, signal.SIGINT)]
)
def test_nothing_stays_behind(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    number: signal.Signals,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(trained, "--workers", workers) as server:
        server.wait_for("serving", workers)
        assert len(list(tmp_path.glob(".posrec-server.*"))) == 1
        processes = children(server)
        server.process.send_signal(number)
        assert server.process.wait(60) == 0
        server.wait_for("stopped", workers)
        assert list(tmp_path.glob(".posrec-server.*")) == []
        assert not any(map(is_alive, processes))
