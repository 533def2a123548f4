"""The processes of `posrec serve`: its options and secrets, several workers, and SIGTERM."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from posrec.server import worker as worker_module
from posrec.server.metrics import is_alive
from tests.helpers import command, slowly
from tests.server.raw import ask, recommend
from tests.server.server_process import Server, children, open_files, serving, until

pytest.importorskip("granian")
pytest.importorskip("redis")

KEY = "open-sesame-4711"
PASSWORD = "pa55w0rd"
STORE = f"redis://shop:{PASSWORD}@127.0.0.1:1/0"
pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").is_file(), reason="there is no /proc here"
)
ANSWERED = 'posrec_requests_total{path="/v1/recommend",status="2xx"}'
DIED = "Unexpected exit from worker-"
BODY = json.dumps({"session": ["i3", "i4"], "item": "i5"}).encode()
HEAD = f"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"


def test_secrets_are_not_in_the_process_list(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSREC_SESSION_STORE", STORE)
    with serving(trained, forked=False, key=KEY) as server:
        for process in (server.process.pid, server.worker):
            line = Path(f"/proc/{process}/cmdline").read_bytes().decode()
            assert KEY not in line
            assert PASSWORD not in line
        assert server.recommend("i3").status == 401
        assert (
            server.ask(
                "POST", "/v1/sessions/a/click", {"item": "i3"}, X_API_Key=KEY
            ).status
            == 503
        )
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
    return sum(
        row[1].endswith(f":{server.port:04X}") and row[3] == "0A" for row in rows
    )  # 0A is LISTEN


def test_kept_connections_are_shared_by_the_workers(server: Server) -> None:
    pids = workers(server)
    before = [open_files(process) for process in pids]

    def accepted() -> list[int]:
        return [
            open_files(process) - count
            for process, count in zip(pids, before, strict=True)
        ]

    with ExitStack() as stack:
        for _ in range(
            200
        ):  # the kernel chooses a worker for each connection at random
            if min(accepted()) >= 10:
                break
            connection = stack.enter_context(
                closing(http.client.HTTPConnection(*server.address, timeout=60))
            )
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
        assert min(accepted()) >= 10


def test_a_killed_worker_is_replaced(server: Server) -> None:
    first = workers(server)
    before = server.metric(ANSWERED)
    assert [server.recommend("i3").status for _ in range(30)] == [200] * 30
    os.kill(first[0], signal.SIGKILL)
    until(lambda: [line for line in server.log if line["message"].startswith(DIED)])
    # While the new one loads its run, the other one accepts every connection.
    assert [server.recommend("i3").status for _ in range(30)] == [200] * 30
    now = workers(server)
    assert set(now) & set(first) == {first[1]}
    # The counters of the dead worker are not lost, and its gauges are gone.
    assert server.metric(ANSWERED) == before + 60
    until(lambda: server.metric("posrec_run_workers") == 2)


@pytest.mark.slow
def test_workers_stop_with_a_parent_that_is_killed(trained: Path) -> None:
    with serving(trained, "--workers", 2) as server:
        pids = workers(server)
        server.process.kill()
        server.process.wait()
        until(lambda: not any(map(is_alive, pids)))


def test_a_worker_that_replaces_one_that_died_at_once_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    pauses = []
    monkeypatch.setattr(worker_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(worker_module.time, "sleep", pauses.append)
    for started in (
        0.0,
        0.5,
        100.0,
        110.0,
        300.0,
    ):  # two workers, and three replacements
        now[0] = started
        worker_module.pause_after_a_death(tmp_path, workers=2)
    assert pauses == [worker_module.PAUSE]  # before the fourth
    assert worker_module.PAUSE > 5.5  # within which granian would give up


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_does_not_end_the_server(
    server: Server,
) -> None:
    for _ in range(3):
        os.kill(workers(server)[0], signal.SIGKILL)
        until(lambda: listening(server) == 1)
    workers(server)
    assert server.recommend("i3").status == 200


def test_the_server_speaks_https(trained: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = [tmp_path / "certificate.pem", tmp_path / "key.pem"]
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -addext"
    names = ["subjectAltName=DNS:localhost", "-out", files[0], "-keyout", files[1]]
    subprocess.run([*line.split(), *names], check=True, capture_output=True)
    with serving(
        trained, "--tls-certificate", files[0], "--tls-key", files[1]
    ) as server:
        context = ssl.create_default_context(cafile=str(files[0]))
        with closing(
            http.client.HTTPSConnection(
                "localhost", server.port, timeout=60, context=context
            )
        ) as client:
            client.request("GET", "/healthz")
            assert client.getresponse().read() == b"ok"
        assert server.said("listening")[0]["url"].startswith("https://")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tls-key", "key.pem"), "both"),
        (
            ("--tls-key", "nothing.pem", "--tls-certificate", "nothing.pem"),
            "can't be used",
        ),
    ],
)
def test_a_certificate_that_can_not_be_used(
    trained: Path, options: tuple[str, ...], message: str
) -> None:
    done = command("serve", trained, "--port", 0, *options)
    assert (done.code, message in " ".join(done.err.split())) == (2, True), done.err


def hold(server: Server, stack: ExitStack) -> socket.socket:
    """A request that the server has accepted and waits for: it can't stop before it is answered."""
    client = stack.enter_context(socket.create_connection(server.address, timeout=120))
    client.sendall(HEAD.encode())
    assert client.recv(4096).startswith(b"HTTP/1.1 100")
    return client


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
        # The kernel resets what waits in the queue of a socket when it is closed.
        assert counts["lost"] <= 6
        for one in held:
            one.sendall(BODY)
        assert {one.makefile("rb").readline() for one in held} == {
            b"HTTP/1.1 200 OK\r\n"
        }
        assert server.process.wait(60) == 0


def test_an_accepted_request_is_answered_while_the_server_stops(trained: Path) -> None:
    with serving(trained) as server, ExitStack() as stack:
        held = hold(server, stack)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: listening(server) == 0)
        held.sendall(BODY)
        assert held.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
        assert server.process.wait(60) == 0


def folders(parent: Path) -> list[Path]:
    return list(parent.glob(".posrec-server.*"))


@pytest.mark.parametrize(
    ("workers", "sent"), [slowly(1, signal.SIGTERM), (2, signal.SIGINT)]
)
def test_nothing_stays_behind(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    sent: signal.Signals,
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
def test_a_cleaner_removes_the_workers_folder(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert (
            server.metric('posrec_requests_total{path="/v1/recommend",status="2xx"}')
            == 1
        )
