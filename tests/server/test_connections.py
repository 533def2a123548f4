"""More connections than files may be open: the idle ones make room, and the server says how many it has room for."""

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.server.raw import Client, recommend
from tests.server.server_process import Server, serving

pytest.importorskip("uvicorn")

FILES, OWN = 256, 128


@contextmanager
def limited(files: int) -> Iterator[None]:
    """What is started meanwhile may open this many files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    started = subprocess.Popen.__init__

    def start(self: object, *arguments: object, **options: object) -> None:
        options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        started(self, *arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", start)
        yield
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with limited(FILES), serving(trained, forked=False) as server:
        yield server


def test_the_limit_is_logged_at_the_start(server: Server) -> None:
    assert server.said("listening")[0]["connections"] == FILES - OWN


def test_silent_connections_make_room(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(700):
            stack.enter_context(socket.create_connection(server.address, timeout=120))
            if _ % 50 == 0:
                assert server.recommend("i3").status == 200
        assert [server.recommend("i3").status for _ in range(20)] == [200] * 20
        assert server.open_files() < FILES


def test_a_connection_in_use_is_not_closed(server: Server) -> None:
    """Silent connections are closed first, then those that wait for the next request."""
    with Client(server) as used, ExitStack() as stack:
        used.sendall(recommend())
        assert used.read().status == 200
        for _ in range(FILES):
            stack.enter_context(socket.create_connection(server.address, timeout=120))
        assert server.recommend("i3").status == 200
        used.sendall(recommend())
        assert used.read().status == 200


def test_where_none_is_idle_the_next_gets_503(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(FILES - OWN):  # each has begun a request
            one = stack.enter_context(Client(server))
            one.sendall(recommend()[:20])
        with Client(server) as next_one:
            answer = next_one.read()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "too many connections" in answer.json()["error"]


def test_too_few_files(trained: Path) -> None:
    line = f"ulimit -n 100; exec {sys.executable} -m posrec serve {trained} --port 0"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "may open 100 files" in done.stderr) == (2, True), done.stderr
