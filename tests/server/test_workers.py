"""Several worker processes on one port: they share the connections, and a dead one is replaced."""

import http.client
import logging
import multiprocessing
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from posrec.server.http.workers import Place
from tests.server.server_process import Server, children, open_files, serving, until

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="there is no /proc/net/tcp here")

ANSWERED = 'posrec_requests_total{path="/v1/recommend",status="2xx"}'
REPLACED = "a worker died and is replaced"


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


def connect_when_serving(run: Path, outcome: Connection) -> None:
    """In a process of its own: a worker that connects to itself at the moment in which it logs "serving"."""
    from posrec.server.http.workers import bind, run_worker
    from posrec.server.json_log import LOG
    from posrec.server.settings import ServerSettings

    bound = bind("127.0.0.1", 0, shared=True)

    class Connecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "serving":
                with socket.socket() as client:
                    outcome.send(client.connect_ex(bound.getsockname()))
                os.kill(os.getpid(), signal.SIGTERM)

    LOG.addHandler(Connecting())
    LOG.setLevel(logging.INFO)
    run_worker(bound, ServerSettings(str(run), onnx=False, workers=2))


def test_a_worker_listens_when_it_logs_serving(trained: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.server.preloaded"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=connect_when_serving, args=(trained, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == 0  # EOFError where the worker ends without the line; errno.ECONNREFUSED if it does not listen
    process.join()


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


def test_a_worker_is_killed_while_clients_ask(server: Server) -> None:
    """Only the requests that it was answering are lost; all others are answered and counted."""
    victim, replaced, before = workers(server)[0], len(server.said(REPLACED)), server.metric(ANSWERED)

    def ask(number: int) -> int:
        if number == 20:
            os.kill(victim, signal.SIGKILL)
        try:
            return server.recommend("i3").status
        except (ConnectionError, http.client.HTTPException):
            return 0

    with ThreadPoolExecutor(4) as clients:
        statuses = Counter(clients.map(ask, range(80)))
    assert set(statuses) <= {200, 0}
    assert statuses[0] < 10
    until(lambda: len(server.said(REPLACED)) > replaced)
    workers(server)
    assert server.metric(ANSWERED) >= before + statuses[200]
    assert server.recommend("i3").status == 200


@pytest.mark.slow
def test_workers_stop_with_a_parent_that_is_killed(trained: Path) -> None:
    with serving(trained, "--workers", 2) as server:
        pids = workers(server)
        server.process.kill()
        server.process.wait()
        until(lambda: not any(map(is_alive, pids)))


def test_ctrl_c_stops_the_workers(trained: Path) -> None:
    with serving(trained, "--workers", 2) as server:
        pids = workers(server)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        until(lambda: len(server.said("stopped")) == 2)
        assert not any(map(is_alive, pids))


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
