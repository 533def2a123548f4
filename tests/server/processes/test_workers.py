"""The processes of `posrec serve`: secrets, several workers, workers that die, and HTTPS."""

import http.client
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from posrec.server import worker as worker_module
from posrec.server.metrics import is_alive
from tests.server.processes.listening import SOCKETS, both_workers, listening
from tests.server.server_process import (
    ANSWERED,
    Server,
    children,
    open_files,
    serving,
    until,
)

KEY = "open-sesame-4711"
PASSWORD = "pa55w0rd"
STORE = f"redis://shop:{PASSWORD}@127.0.0.1:1/0"
DIED = "Unexpected exit from worker-"
pytestmark = pytest.mark.skipif(not SOCKETS.is_file(), reason="there is no /proc here")


def test_secrets_are_not_in_the_process_list(
    trained_with_export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSREC_SESSION_STORE", STORE)
    with serving(trained_with_export, onnx=True, forked=False, key=KEY) as server:
        for process in (server.process.pid, server.worker):
            line = Path(f"/proc/{process}/cmdline").read_bytes().decode()
            assert KEY not in line
            assert PASSWORD not in line
        assert server.recommend("i3").status == 401
        click = "/v1/sessions/a/click"
        assert server.post(click, {"item": "i3"}, X_API_Key=KEY).status == 503
        assert PASSWORD not in str(server.log)
        assert KEY not in str(server.log)


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--workers", 2) as server:
        yield server


def test_kept_connections_are_shared_by_the_workers(server: Server) -> None:
    workers = both_workers(server)
    before = [open_files(worker) for worker in workers]

    def fewest_accepted() -> int:
        now = [open_files(worker) for worker in workers]
        return min(now[0] - before[0], now[1] - before[1])

    with ExitStack() as stack:
        for _ in range(200):  # the kernel chooses a worker for each at random
            if fewest_accepted() >= 10:
                break
            connection = http.client.HTTPConnection(*server.address, timeout=60)
            stack.enter_context(closing(connection))
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
        assert fewest_accepted() >= 10


def test_a_killed_worker_is_replaced(server: Server) -> None:
    killed, other = both_workers(server)
    before = server.metric(ANSWERED)

    def ask_often() -> None:
        assert [server.recommend("i3").status for _ in range(30)] == [200] * 30

    ask_often()
    os.kill(killed, signal.SIGKILL)
    until(lambda: [line for line in server.log if line["message"].startswith(DIED)])
    # While the new one loads its run, the other one accepts every connection.
    ask_often()
    assert set(both_workers(server)) & {killed, other} == {other}
    # The counters of the dead worker are not lost, and its gauges are gone.
    assert server.metric(ANSWERED) == before + 60
    until(lambda: server.metric("posrec_run_workers") == 2)


@pytest.mark.slow
def test_workers_stop_with_a_parent_that_is_killed(trained: Path) -> None:
    with serving(trained, "--workers", 2) as server:
        workers = both_workers(server)
        server.process.kill()
        server.process.wait()
        until(lambda: not any(map(is_alive, workers)))


def test_a_worker_that_replaces_one_that_died_at_once_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    for now in (0.0, 0.5, 100.0, 110.0, 300.0):  # two workers, three replacements
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        worker_module.pause_after_a_death(tmp_path, workers=2)
    assert pauses == [worker_module.PAUSE]  # before the fourth
    assert worker_module.PAUSE > 5.5  # within which granian would give up


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_does_not_end_the_server(
    server: Server,
) -> None:
    for _ in range(3):
        os.kill(both_workers(server)[0], signal.SIGKILL)
        until(lambda: listening(server) == 1)
    both_workers(server)
    assert server.recommend("i3").status == 200


@pytest.mark.slow
def test_a_cleaner_removes_the_workers_folder(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(trained, "--workers", 2) as server:
        server.wait_for("serving", 2)
        (folder,) = tmp_path.glob(".posrec-server.*")
        shutil.rmtree(folder)
        assert server.get("/metrics").status == 200
        for worker in children(server):
            os.kill(worker, signal.SIGKILL)
        server.wait_for("serving", 4)
        assert server.recommend("i3").status == 200
        assert server.metric(ANSWERED) == 1


def test_the_server_speaks_https(trained: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate = tmp_path / "certificate.pem"
    key = tmp_path / "key.pem"
    line = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    files = ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*line.split(), *files], check=True, capture_output=True)
    options = ("--tls-certificate", certificate, "--tls-key", key)
    context = ssl.create_default_context(cafile=str(certificate))
    with serving(trained, *options) as server:
        client = http.client.HTTPSConnection(
            "localhost", server.port, timeout=60, context=context
        )
        with closing(client):
            client.request("GET", "/healthz")
            assert client.getresponse().read() == b"ok"
        assert server.logged("listening")[0]["url"].startswith("https://")
