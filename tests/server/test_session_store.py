"""Sessions in a SQLite file and in a real redis-server, which may go down and come back."""

import asyncio
import os
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from posrec.server import session_store as module
from posrec.server.session_store import (
    CONNECTIONS,
    EXPIRY,
    MAX_CLICKS,
    RedisSessions,
    SessionStore,
    SqliteSessions,
    StoreUnavailable,
    key,
    open_store,
)
from tests.helpers import command, listed
from tests.server.feedback.test_writing import largest_file
from tests.server.server_process import Server, children, serving, until
from tests.server.store_process import AnyStore, SqliteFile, Store

pytest.importorskip("granian")
pytest.importorskip("redis")


@pytest.fixture
def server(store_server: Server) -> Server:
    return store_server


def click(server: Server, session: str, item: object, **more: object) -> list[str]:
    answer = server.ask("POST", f"/v1/sessions/{session}/click", {"item": item, **more})
    assert answer.status == 200, answer.body
    return [one["item"] for one in answer.json()["items"]]


def best(server: Server, *session: str, **more: object) -> list[str]:
    return [one["item"] for one in server.recommend(*session, **more).json()["items"]]


def test_clicks_add_up(server: Server, any_store: AnyStore) -> None:
    assert click(server, "anna", "i3") == best(server, "i3")
    assert click(server, "bert", "i9") == best(server, "i9")
    assert click(server, "anna", "i4", k=3) == best(server, "i3", "i4", k=3)
    assert click(server, "anna", "i8", exclude="seen") == best(
        server, "i3", "i4", "i8", exclude_seen=True
    )
    assert 0 < any_store.seconds_left("anna") <= EXPIRY == 1800
    assert any_store.stored("anna") == ["i3", "i4", "i8"]
    assert "i5" not in click(server, "anna", "i5", k=29, exclude="current")


def test_an_expired_session_starts_empty(server: Server, any_store: AnyStore) -> None:
    click(server, "dora", "i3")
    for _ in range(2):  # the clicks of a request are not stored
        assert best(server, "i4", session_id="dora") == best(server, "i3", "i4")
    any_store.expire("dora")
    assert server.recommend(session_id="dora").json()["popular"]
    assert click(server, "dora", "i4") == best(server, "i4")


def test_a_session_can_be_deleted(server: Server, any_store: AnyStore) -> None:
    click(server, "erna", "i3")
    click(server, "ernst", "i5")
    for _ in range(2):  # the second time there is nothing to delete
        answer = server.ask("DELETE", "/v1/sessions/erna")
        assert (answer.status, answer.body) == (204, b"")
    assert (any_store.stored("erna"), any_store.stored("ernst")) == ([], ["i5"])
    assert click(server, "erna", "i4") == best(server, "i4")


def test_only_the_latest_clicks_are_stored_and_read(
    server: Server, any_store: AnyStore
) -> None:
    any_store.put("many", *["y"] * (MAX_CLICKS - 1))
    for _ in range(5):
        click(server, "many", "x" * 1024)
    assert any_store.stored("many") == ["y"] * (MAX_CLICKS - 5) + ["x" * 1024] * 5


def test_the_store_goes_down_and_comes_back(
    server: Server, any_store: AnyStore
) -> None:
    any_store.stop()
    try:
        down = server.ask("POST", "/v1/sessions/emil/click", {"item": "i3"})
        assert (down.status, down.headers["retry-after"]) == (503, "1")
        assert "session store" in down.json()["error"]
        assert server.recommend("i3").status == 200
        assert server.recommend("i3", session_id="emil").status == 503
        assert server.ask("DELETE", "/v1/sessions/emil").status == 503
        assert server.ask("GET", "/readyz").status == 200
    finally:
        any_store.start()
    until(
        lambda: (
            server.ask("POST", "/v1/sessions/emil/click", {"item": "i3"}).status == 200
        )
    )
    assert click(server, "emil", "i4") in (
        best(server, "i3", "i4"),
        best(server, "i3", "i3", "i4"),
    )
    assert server.metric("posrec_store_errors_total") >= 2


def test_a_store_that_hangs_times_out(trained: Path, any_store: AnyStore) -> None:
    with serving(
        trained, "--session-store", any_store.address().partition("?")[0]
    ) as server:
        until(
            lambda: (
                server.ask("POST", "/v1/sessions/fritz/click", {"item": "i3"}).status
                == 200
            )
        )
        with any_store.hanging():
            assert (
                server.ask("POST", "/v1/sessions/fritz/click", {"item": "i4"}).status
                == 503
            )
            assert server.recommend("i3").status == 200
            # SQLite reads while another process writes.
            status = 200 if isinstance(any_store, SqliteFile) else 503
            assert server.recommend("i3", session_id="fritz").status == status
        until(lambda: server.recommend("i5", session_id="fritz").status == 200)
    # Redis may have received the click that it did not answer.
    assert any_store.stored("fritz") in (["i3"], ["i3", "i4"])


def test_many_clicks_at_once(any_store: AnyStore) -> None:
    async def click_everywhere() -> list[list[str]]:
        sessions = open_store(any_store.address())
        if isinstance(any_store, Store):
            any_store.client.client_pause(
                200
            )  # milliseconds, so that all connections are in use
        stored = await asyncio.gather(
            *(sessions.add(f"hans {n}", "i3") for n in range(2 * CONNECTIONS))
        )
        await sessions.close()
        return stored

    assert asyncio.run(click_everywhere()) == [["i3"]] * (2 * CONNECTIONS)


def test_of_many_clicks_at_once_those_that_are_answered_are_stored(
    trained: Path, any_store: AnyStore
) -> None:
    def click_once(number: int) -> int:
        return server.ask(
            "POST", f"/v1/sessions/many-{number}/click", {"item": "i3"}
        ).status

    with (
        serving(
            trained, "--session-store", any_store.address(), "--queue", 4
        ) as server,
        ThreadPoolExecutor(40) as clients,
    ):
        click(server, "first", "i3")
        with any_store.hanging():  # four fill the queue, and wait for the store
            asked = [clients.submit(click_once, number) for number in range(40)]
            until(lambda: sum(one.done() for one in asked) == 36)
        statuses = [one.result() for one in asked]
    assert sorted(statuses) == [200] * 4 + [503] * 36
    assert [len(any_store.stored(f"many-{number}")) for number in range(40)] == [
        int(one == 200) for one in statuses
    ]


def test_a_click_of_a_wrong_request_is_not_stored(
    server: Server, any_store: AnyStore
) -> None:
    wrong = {"item": "i3", "filter": {"colour": "red"}}
    assert server.ask("POST", "/v1/sessions/ida/click", wrong).status == 400
    assert any_store.stored("ida") == []


def test_the_log_has_the_reason_of_a_store_that_refuses(
    trained: Path, store: Store
) -> None:
    with serving(
        trained, "--session-store", f"redis://shop:wrong@127.0.0.1:{store.port}/0"
    ) as server:
        (line,) = until(lambda: server.said("the session store failed"))
        assert "password" in line["reason"]
        assert "wrong@" not in str(server.log)
        assert (
            server.ask("POST", "/v1/sessions/jan/click", {"item": "i3"}).status == 503
        )


def test_a_connection_that_is_lost_at_the_last_moment_is_an_error_of_the_store() -> (
    None
):
    """uvloop raises an error of its own."""

    async def lost(*arguments: object) -> None:
        raise RuntimeError(
            "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
        )

    reasons: list[str] = []
    store = open_store("redis://127.0.0.1:1/0", reasons.append)
    assert isinstance(store, RedisSessions)
    store.client.lrange = lost
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.clicks("anna"))
    assert "the handler is closed" in reasons[0]


def test_what_another_program_writes_to_redis_is_an_error_of_the_store(
    trained: Path, store: Store
) -> None:
    store.client.set(key("odd"), "text")
    store.client.rpush(key("bytes"), b"\xff\xfe", "i3")
    with serving(trained, "--session-store", store.address()) as server:
        assert (
            server.ask("POST", "/v1/sessions/odd/click", {"item": "i3"}).status == 503
        )
        for number in range(3):
            assert (
                server.ask("POST", "/v1/sessions/bytes/click", {"item": "i3"}).status
                == 503
            )
            assert server.recommend("i4", session_id="bytes").status == 503
            assert click(server, f"after-{number}", "i5") == best(server, "i5")
    assert store.client.llen(key("bytes")) == 2  # the click is not stored


def test_without_a_named_store_sessions_are_stored_until_the_server_stops(
    plain_server: Server, trained: Path
) -> None:
    assert click(plain_server, "anna", "i3") == best(plain_server, "i3")
    assert click(plain_server, "anna", "i4") == best(plain_server, "i3", "i4")
    with serving(trained) as server:
        (line,) = server.said(
            "sessions are stored until the server stops; --session-store stores them for longer"
        )
        file = Path(line["file"])
        assert server.recommend(session_id="anna").json()[
            "popular"
        ]  # each server has a file of its own
        assert (file.stat().st_mode & 0o077, file.parent.stat().st_mode & 0o077) == (
            0,
            0,
        )
    assert not file.parent.exists()


def test_what_a_killed_server_stored_is_removed_by_the_next(trained: Path) -> None:
    with serving(trained) as server:
        (line,) = [one for one in server.log if "file" in one]
        click(server, "anna", "i3")
        os.kill(server.process.pid, signal.SIGKILL)
    assert Path(line["file"]).exists()
    with serving(trained) as server:
        assert server.recommend(session_id="anna").json()["popular"]
        assert not Path(line["file"]).parent.exists()


def test_workers_share_a_file_that_survives_their_kill_and_a_restart(
    trained_with_export: Path, tmp_path: Path
) -> None:
    file = SqliteFile(tmp_path / "not yet there")
    options = ("--session-store", file.address(), "--workers", 2)
    with serving(trained_with_export, *options, onnx=True) as server:
        until(lambda: len(server.said("serving")) == 2)
        for number in range(30):  # connections are spread over the workers
            click(server, "anna", f"i{number}")
        for worker in children(server):
            os.kill(worker, signal.SIGKILL)
    assert file.stored("anna") == [f"i{number}" for number in range(30)]
    with serving(trained_with_export, *options, onnx=True) as server:
        click(server, "anna", "i3")
        os.kill(server.process.pid, signal.SIGKILL)
    assert file.stored("anna")[-2:] == ["i29", "i3"]
    content = b"".join(path.read_bytes() for path in file.path.parent.iterdir())
    assert b"anna" not in content  # only its hash is stored


def sqlite_sessions(path: Path) -> tuple[SqliteSessions, list[str]]:
    reasons: list[str] = []
    sessions = open_store(f"sqlite:{path}?timeout=60", reasons.append)
    assert isinstance(sessions, SqliteSessions)
    return sessions, reasons


def test_deleted_and_expired_sessions_leave_nothing_in_the_file(tmp_path: Path) -> None:
    sessions, _ = sqlite_sessions(tmp_path / "file")

    async def use() -> None:
        for number in range(250):
            await sessions.add(f"s{number}", f"secret-{number}")
        assert await sessions.delete("s0")
        assert not await sessions.delete("s0")
        file = SqliteFile(tmp_path)
        file.path = tmp_path / "file"
        file.execute("UPDATE sessions SET expires = 1 WHERE rowid > 10")
        await sessions.delete_expired()
        assert file.execute("SELECT count(*) FROM sessions") == [(9,)]
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert (
            b"secret-5" in content,
            b"secret-0" in content,
            b"secret-200" in content,
        ) == (True, False, False)
        await sessions.close()

    asyncio.run(use())
    assert listed(tmp_path) == ["file"]


def test_a_full_file_makes_room_by_the_sessions_that_end_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "PRAGMAS", (*module.PRAGMAS, f"max_page_count={(1 << 20) // 4096}")
    )
    sessions, reasons = sqlite_sessions(tmp_path / "file")

    async def fill() -> None:
        for number in range(3000):
            assert await sessions.add(f"s{number}", "x" * 1000) == ["x" * 1000]
        assert await sessions.clicks("s0") == []
        assert [
            len(await sessions.clicks(f"s{number}")) for number in range(2900, 3000)
        ] == [1] * 100
        await sessions.close()

    asyncio.run(fill())
    assert reasons == []
    assert (tmp_path / "file").stat().st_size <= 1 << 20


def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    sessions, reasons = sqlite_sessions(tmp_path / "file")

    async def fill() -> None:
        await sessions.add("anna", "i3")
        with largest_file(1), pytest.raises(StoreUnavailable):
            await sessions.add("anna", "i4")
        assert await sessions.add("anna", "i5") == ["i3", "i5"]
        await sessions.close()

    asyncio.run(fill())
    assert len(reasons) == 1


def ask_both(sessions: SessionStore) -> list[str | None]:
    """Add a click and read it; None for each that fails."""

    async def ask() -> list[str | None]:
        answers: list[str | None] = []
        for asked in (sessions.add("anna", "i3"), sessions.clicks("anna")):
            try:
                answers.append(" ".join(await asked))
            except StoreUnavailable:
                answers.append(None)
        await sessions.close()
        return answers

    return asyncio.run(ask())


def test_what_another_program_writes_to_the_file_is_an_error_until_it_is_gone(
    tmp_path: Path,
) -> None:
    file = SqliteFile(tmp_path)
    file.path.write_bytes(b"not a database " * 1000)
    sessions, reasons = sqlite_sessions(file.path)
    assert ask_both(sessions) == [None, None]
    assert "not a database" in reasons[0]
    file.path.unlink()
    assert ask_both(sqlite_sessions(file.path)[0]) == ["i3", "i3"]
    file.execute("UPDATE sessions SET clicks = '[1, 2]'")
    assert ask_both(sqlite_sessions(file.path)[0]) == [None, None]
    assert file.execute("SELECT clicks FROM sessions") == [("[1, 2]",)]


def test_an_operator_may_delete_the_file(tmp_path: Path) -> None:
    sessions, reasons = sqlite_sessions(tmp_path / "file")

    async def ask() -> None:
        await sessions.add("anna", "i3")
        (tmp_path / "file").unlink()
        assert await sessions.add("anna", "i4") == ["i4"]
        await sessions.close()

    asyncio.run(ask())
    assert reasons == []


def test_a_slow_disk_keeps_only_those_waiting_who_asked_for_a_session(
    tmp_path: Path,
) -> None:
    sessions = open_store(f"sqlite:{tmp_path / 'file'}?timeout=0.2")
    assert isinstance(sessions, SqliteSessions)
    ended = threading.Event()

    async def ask() -> None:
        with pytest.raises(StoreUnavailable):
            await sessions.run(lambda connection: ended.wait(60))
        many = await asyncio.gather(
            *(sessions.clicks("anna") for _ in range(500)), return_exceptions=True
        )
        assert {type(one) for one in many} == {StoreUnavailable}
        ended.set()
        sessions.timeout = 60
        assert await sessions.add("anna", "i3") == ["i3"]
        await sessions.close()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("sqlite:", "sqlite:FILE"),
        ("sqlite:{folder}", "sqlite:FILE"),
        ("sqlite:{folder}/text", "not a database"),
        ("sqlite:{folder}/others", "another program"),
        ("sqlite:{folder}/new?timeout=soon", "timeout"),
        ("sessions.sqlite", "redis://HOST:PORT/DB"),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_at_the_start(
    trained: Path, tmp_path: Path, store: str, message: str
) -> None:
    (tmp_path / "text").write_text("a text, not a database" * 100)
    with sqlite3.connect(tmp_path / "others") as others:
        others.execute("CREATE TABLE customers (name)")
    done = command(
        "serve", trained, "--port", 0, "--session-store", store.format(folder=tmp_path)
    )
    assert (done.code, message in " ".join(done.err.split())) == (2, True), done.err
    assert listed(tmp_path) == ["others", "text"]
