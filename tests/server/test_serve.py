"""The processes of `posrec serve`: its options and secrets, several workers, and SIGTERM."""

import http.client
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from posrec.server.serve import Place
from tests.helpers import slowly
from tests.server.raw import Client, ask, recommend
from tests.server.server_process import Server, children, open_files, serving, until

pytest.importorskip("uvicorn")
pytest.importorskip("redis")

KEY, PASSWORD = "open-sesame-4711", "pa55w0rd"
STORE = f"redis://shop:{PASSWORD}@127.0.0.1:1/0"
pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="there is no /proc here")
ANSWERED = 'posrec_requests_total{path="/v1/recommend",status="2xx"}'
REPLACED = "a worker died and is replaced"
BODY = json.dumps({"session": ["i3", "i4"], "item": "i5"}).encode()
HEAD = f"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"


def test_secrets_are_not_in_the_process_list(trained: Path) -> None:
    with serving(trained, "--workers", 2, "--api-key", KEY, f"--session-store={STORE}", forked=False) as server:
        pids = [server.process.pid, *until(lambda: children(server))]
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
        assert len(lines) == 3
        for line in lines:
            assert "serve" in line
            assert KEY not in line
            assert PASSWORD not in line
        for worker in pids[1:]:
            inherited = Path(f"/proc/{worker}/environ").read_bytes().decode()
            assert KEY not in inherited
            assert PASSWORD not in inherited
        assert server.recommend("i3").status == 401
        assert server.ask("POST", "/v1/sessions/a/click", {"item": "i3"}, X_API_Key=KEY).status == 503
        assert PASSWORD not in str(server.log)
        assert KEY not in str(server.log)


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--workers", 2) as server:
        yield server


def workers(server: Server) -> list[int]:
    """Both workers, once they listen."""
    until(lambda: listening(server) == 2)
    found = children(server)
    assert len(found) == 2
    return found


def listening(server: Server) -> int:
    """The number of sockets that listen on the server's port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{server.port:04X}") and row[3] == "0A" for row in rows)  # 0A is LISTEN


def test_kept_connections_are_shared_by_the_workers(server: Server) -> None:
    pids = workers(server)
    before = [open_files(process) for process in pids]

    def accepted() -> list[int]:
        return [open_files(process) - count for process, count in zip(pids, before, strict=True)]

    with ExitStack() as stack:
        for _ in range(200):  # the kernel chooses a worker for each connection at random
            if min(accepted()) >= 10:
                break
            connection = stack.enter_context(closing(http.client.HTTPConnection(*server.address, timeout=60)))
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
        assert min(accepted()) >= 10


def test_a_killed_worker_is_replaced(server: Server) -> None:
    first = workers(server)
    before = server.metric(ANSWERED)
    assert [server.recommend("i3").status for _ in range(30)] == [200] * 30
    os.kill(first[0], signal.SIGKILL)
    until(lambda: server.said(REPLACED))
    # While the new one loads its run, the other one accepts every connection.
    assert [server.recommend("i3").status for _ in range(30)] == [200] * 30
    now = workers(server)
    line = server.said(REPLACED)[-1]
    assert (line["worker"], line["code"]) == (first[0], -signal.SIGKILL)
    assert set(now) & set(first) == {first[1]}
    # The counters of the dead worker are not lost.
    assert server.metric(ANSWERED) == before + 60
    assert server.metric("posrec_run_workers") == 2


@pytest.mark.slow
def test_workers_stop_with_a_parent_that_is_killed(trained: Path) -> None:
    with serving(trained, "--workers", 2) as server:
        pids = workers(server)
        server.process.kill()
        server.process.wait()
        until(lambda: not any(map(is_alive, pids)))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_dies_again_and_again_is_started_less_and_less_often() -> None:
    place = Place(worker=None, started=0.0)  # type: ignore[arg-type]
    pauses = []
    for now in (100.0, 110.0, 120.0, 130.0, 140.0, 150.0, 160.0, 170.0):
        place.died(now)
        pauses.append(place.pause)
        assert place.due == now + place.pause
        place.started = now
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30]
    place.died(place.started + 100)
    assert place.pause == 0


def hold(server: Server, stack: ExitStack) -> socket.socket:
    """A request that the server has accepted and waits for: it can't stop before it is answered."""
    client = stack.enter_context(socket.create_connection(server.address, timeout=120))
    client.sendall(HEAD.encode())
    assert client.recv(4096).startswith(b"HTTP/1.1 100")
    return client


@pytest.mark.slow
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


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_request_on_its_way_is_answered(trained: Path, asked_before: bool) -> None:
    """Of a client that has just connected, and of one that keeps its connection."""
    with serving(trained) as server, Client(server) as client, ExitStack() as stack:
        if asked_before:
            client.sendall(recommend())
            assert "connection" not in client.read().headers
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
    return list(parent.glob(".posrec-server.*"))


@pytest.mark.parametrize(("workers", "sent"), [slowly(1, signal.SIGTERM), (2, signal.SIGINT)])
def test_nothing_stays_behind(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, sent: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(trained, "--workers", workers) as server:
        assert len(folders(tmp_path)) == 1
        pids = children(server)
        server.process.send_signal(sent)
        assert server.process.wait(60) == 0
        until(lambda: len(server.said("stopped")) == workers)
        assert folders(tmp_path) == []
        assert not any(map(is_alive, pids))


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


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads can't be listed here")
def test_no_thread_is_started_later(trained: Path) -> None:
    """Where memory has run out, Python waits for ever for a thread that can't begin to run."""
    with serving(trained) as server:
        folder = Path(f"/proc/{server.process.pid}/task")
        before = {one.name for one in folder.iterdir()}
        assert server.ask("POST", "/v1/recommend/batch", {"sessions": [["i3"]] * 100}).status == 200
        assert server.recommend("i3").status == 200
        assert {one.name for one in folder.iterdir()} == before
