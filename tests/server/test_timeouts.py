"""When a connection's time begins and ends, with a clock that the test sets."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from posrec.server.http.guard import KEEP_ALIVE, Connection
from tests.server.raw import SESSION, head

HEAD = head("POST", "/v1/recommend", f"Content-Length: {len(SESSION)}")
SECONDS = 10


class Transport:
    """What a Connection asks of a transport."""

    def __init__(self) -> None:
        self.written, self.unread, self.closed = b"", 0, False

    def get_extra_info(self, name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


class Loop:
    """Starts nothing, so no request is ever answered."""

    def create_task(self, work: Any) -> "Loop":
        work.close()
        return self

    def add_done_callback(self, callback: Any) -> None:
        pass


def connected() -> tuple[Connection, Transport]:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        pass

    application.settings = SimpleNamespace(request_timeout=SECONDS, connections=10)  # type: ignore[attr-defined]
    application.metrics = SimpleNamespace(request=lambda *_: None)  # type: ignore[attr-defined]
    config = uvicorn.Config(application, log_config=None)
    config.load()
    config.loaded_app = application
    state, transport = uvicorn.Server(config).server_state, Transport()
    connection = Connection(config, state, {}, Loop())
    connection.connection_made(transport)
    return connection, transport


def test_a_complete_request_has_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    connection, transport = connected()
    connection.data_received(HEAD + SESSION)
    clock.now += 100
    connection.check(clock.now)
    assert (transport.closed, transport.written) == (False, b"")


def test_a_head_that_is_not_completed_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    connection, transport = connected()
    connection.data_received(HEAD[:30])
    clock.now += SECONDS - 1
    connection.data_received(HEAD[30:40])
    connection.check(clock.now)
    assert not transport.closed
    clock.now += 2
    connection.check(clock.now)
    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert transport.closed


def test_an_unfinished_request_does_not_cost_the_one_before_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    connection, transport = connected()
    connection.data_received(HEAD + SESSION + HEAD[:30])
    clock.now += SECONDS + 1
    connection.check(clock.now)
    assert (transport.closed, transport.written) == (False, b"")
    assert not connection.cycle.keep_alive  # the connection is closed after that answer


def test_a_silent_connection_is_closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    connection, transport = connected()
    clock.now += KEEP_ALIVE - 1
    connection.check(clock.now)
    assert not transport.closed
    clock.now += 2
    connection.check(clock.now)
    assert (transport.closed, transport.written) == (True, b"")


def test_an_answer_that_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    connection, transport = connected()
    for transport.unread in (5000, 4000, 4000):  # the first two differ: the client has read something
        connection.check(clock.now)
        assert not transport.closed
        clock.now += SECONDS - 1
    clock.now += 2
    connection.check(clock.now)
    assert transport.closed
