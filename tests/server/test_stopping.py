"""SIGTERM: the server stops listening at once, and answers whoever is connected."""

import http.client
import json
import os
import signal
import socket
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.raw import Client, ask, recommend
from tests.server.server_process import Server, children, serving, until

pytest.importorskip("uvicorn")

BODY = json.dumps({"session": ["i3", "i4"], "item": "i5"}).encode()
HEAD = f"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"


def hold(server: Server, stack: ExitStack) -> socket.socket:
    """A request that the server has accepted and waits for: it can't stop before it is answered."""
    client = stack.enter_context(socket.create_connection(server.address, timeout=120))
    client.sendall(HEAD.encode())
    assert client.recv(4096).startswith(b"HTTP/1.1 100")
    return client


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_are_answered_or_refused(trained: Path, workers: int) -> None:
    """Clients connect all the time: each is answered, or refused because nobody listens any more."""
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
        if workers > 1:
            until(lambda: len(server.said("serving")) == workers)
        held = [hold(server, stack) for _ in range(8)]
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
        # The kernel resets a connection that is completed between the last look at its queue and the end of listening.
        assert counts["lost"] <= 1
        for one in held:
            one.sendall(BODY)
        assert {one.makefile("rb").readline() for one in held} == {b"HTTP/1.1 200 OK\r\n"}
        assert server.process.wait(60) == 0


def test_a_client_that_has_just_connected_is_answered(trained: Path) -> None:
    with serving(trained) as server, Client(server) as client, ExitStack() as stack:
        held = hold(server, stack)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: any(line["message"] == "Shutting down" for line in server.log))
        client.sendall(recommend())
        answer = client.read()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        held.sendall(BODY)
        assert server.process.wait(60) == 0


def folders(parent: Path) -> list[Path]:
    """The temporary folders of servers; libraries may leave files of their own beside them."""
    return list(parent.glob("posrec-*"))


@pytest.mark.parametrize(("workers", "sent"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_nothing_stays_behind(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, sent: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(trained, "--workers", workers) as server:
        assert len(folders(tmp_path)) == (0 if workers == 1 else 1)
        server.process.send_signal(sent)
        server.process.wait(60)
        assert folders(tmp_path) == []


@pytest.mark.slow
def test_the_folder_of_a_killed_server_is_removed_at_the_next_start(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(trained, "--workers", 2) as server:
        server.process.kill()
        server.process.wait()
        (left,) = folders(tmp_path)
    with serving(trained, "--workers", 2) as first, serving(trained, "--workers", 2) as second:
        assert not left.exists()
        assert len(folders(tmp_path)) == 2  # that of the first is in use
        assert {first.recommend("i3").status, second.recommend("i3").status} == {200}


@pytest.mark.slow
def test_a_cleaner_removes_the_workers_folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on, replaces a worker that dies, and counts again."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(trained, "--workers", 2) as server:
        until(lambda: len(server.said("serving")) == 2)
        (folder,) = folders(tmp_path)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        assert server.ask("GET", "/metrics").status == 200
        for worker in children(server):
            os.kill(worker, signal.SIGKILL)
        until(lambda: len(server.said("serving")) == 4)
        assert server.recommend("i3").status == 200
        assert server.metric('posrec_requests_total{path="/v1/recommend",status="2xx"}') == 1
