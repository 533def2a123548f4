"""Clicks of a session id, in a SQLite file and in a real redis-server, which may go down and come
back."""

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from posrec.server.session_store import (
    CONNECTIONS,
    EXPIRY,
    MAX_CLICKS,
    MOST_WAITING,
    RedisSessions,
    StoreUnavailable,
    key,
    open_store,
)
from tests.server.asgi import in_process
from tests.server.asking import Answer, Asker
from tests.server.server_process import Server, children, serving, until
from tests.server.sessions.store_process import AnyStore, SqliteFile, Store


def click(server: Asker, session: str, item: str, **options: object) -> Answer:
    return server.post(f"/v1/sessions/{session}/click", {"item": item, **options})


def best(server: Asker, *session: str, **options: object) -> list[str]:
    return server.recommend(*session, **options).items


def test_clicks_add_up(server: Server, any_store: AnyStore) -> None:
    assert click(server, "anna", "i3").items == best(server, "i3")
    assert click(server, "bert", "i9").items == best(server, "i9")
    assert click(server, "anna", "i4", k=3).items == best(server, "i3", "i4", k=3)
    unseen = click(server, "anna", "i8", exclude="seen").items
    assert unseen == best(server, "i3", "i4", "i8", exclude_seen=True)
    assert 0 < any_store.seconds_left("anna") <= EXPIRY == 1800
    assert any_store.stored("anna") == ["i3", "i4", "i8"]
    assert "i5" not in click(server, "anna", "i5", k=29, exclude="current").items


def test_an_expired_session_starts_empty(server: Server, any_store: AnyStore) -> None:
    click(server, "dora", "i3")
    for _ in range(2):  # the clicks of a request are not stored
        assert best(server, "i4", session_id="dora") == best(server, "i3", "i4")
    any_store.expire("dora")
    assert server.recommend(session_id="dora").json()["popular"]
    assert click(server, "dora", "i4").items == best(server, "i4")


def test_a_session_can_be_deleted(server: Server, any_store: AnyStore) -> None:
    click(server, "erna", "i3")
    click(server, "ernst", "i5")
    for _ in range(2):  # the second time there is nothing to delete
        answer = server.ask("DELETE", "/v1/sessions/erna")
        assert (answer.status, answer.body) == (204, b"")
    assert (any_store.stored("erna"), any_store.stored("ernst")) == ([], ["i5"])
    assert click(server, "erna", "i4").items == best(server, "i4")


def test_a_click_that_came_before_a_deletion_is_not_stored_after_it(
    any_store: AnyStore,
) -> None:
    async def click_late() -> None:
        sessions = open_store(any_store.address())
        received = time.time()
        await sessions.add("late", "i2", received)
        assert await sessions.delete("late")
        assert await sessions.add("late", "i3", received) == ["i3"]
        assert await sessions.clicks("late") == []
        assert await sessions.add("late", "i4", time.time()) == ["i4"]
        assert await sessions.clicks("late") == ["i4"]
        await sessions.close()

    asyncio.run(click_late())


def test_only_the_latest_clicks_are_stored_and_read(
    server: Server, any_store: AnyStore
) -> None:
    any_store.put("many", *["y"] * (MAX_CLICKS - 1))
    for _ in range(5):
        assert click(server, "many", "x" * 1024).status == 200
    assert any_store.stored("many") == ["y"] * (MAX_CLICKS - 5) + ["x" * 1024] * 5


def test_the_store_goes_down_and_comes_back(
    server: Server, any_store: AnyStore
) -> None:
    any_store.stop()
    try:
        refused = click(server, "emil", "i3")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "session store" in refused.error
        assert server.recommend("i3").status == 200
        assert server.recommend("i3", session_id="emil").status == 503
        assert server.ask("DELETE", "/v1/sessions/emil").status == 503
        assert server.get("/readyz").status == 200
    finally:
        any_store.start()
    until(lambda: click(server, "emil", "i3").status == 200)
    possible = [best(server, "i3", "i4"), best(server, "i3", "i3", "i4")]
    assert click(server, "emil", "i4").items in possible
    assert server.metric("posrec_store_errors_total") >= 2


def test_a_store_that_hangs_times_out(trained: Path, any_store: AnyStore) -> None:
    address = any_store.address().partition("?")[0]  # with the default timeouts
    with in_process(trained, session_store=address) as server:
        until(lambda: click(server, "fritz", "i3").status == 200)
        with any_store.hanging():
            assert click(server, "fritz", "i4").status == 503
            assert server.recommend("i3").status == 200
            # SQLite reads while another process writes.
            status = 200 if isinstance(any_store, SqliteFile) else 503
            assert server.recommend("i3", session_id="fritz").status == status
        until(lambda: server.recommend("i5", session_id="fritz").status == 200)
    # Redis may have received the click that it did not answer.
    assert any_store.stored("fritz") in (["i3"], ["i3", "i4"])


def test_many_clicks_at_once(any_store: AnyStore) -> None:
    names = [f"hans {number}" for number in range(2 * CONNECTIONS)]

    async def click_everywhere() -> list[list[str]]:
        sessions = open_store(any_store.address())
        if isinstance(any_store, Store):
            # For 200 milliseconds, so that all connections are in use.
            any_store.client.client_pause(200)
        stored = await asyncio.gather(*(sessions.add(name, "i3") for name in names))
        await sessions.close()
        return stored

    assert asyncio.run(click_everywhere()) == [["i3"]] * len(names)


def test_a_stuck_store_keeps_few_clicks_and_no_other_request_waiting(
    trained: Path, any_store: AnyStore
) -> None:
    names = [f"many-{number}" for number in range(MOST_WAITING + 12)]
    options = ("--session-store", any_store.address(), "--queue", 4)
    with serving(trained, *options) as server, ThreadPoolExecutor(200) as clients:
        assert click(server, "first", "i3").status == 200
        with any_store.hanging():
            clicks = [clients.submit(click, server, name, "i3") for name in names]
            until(lambda: sum(future.done() for future in clicks) == 12)
            assert server.recommend("i3").status == 200
            assert server.recommend("i3", k=1000, diversify=0.5).status == 200
        statuses = [future.result().status for future in clicks]
    assert sorted(statuses) == [200] * MOST_WAITING + [503] * 12
    stored = [len(any_store.stored(name)) for name in names]
    assert stored == [int(status == 200) for status in statuses]


def test_a_click_of_a_wrong_request_is_not_stored(
    server: Server, any_store: AnyStore
) -> None:
    assert click(server, "ida", "i3", filter={"colour": "red"}).status == 400
    assert any_store.stored("ida") == []


def test_the_log_has_the_reason_of_a_store_that_refuses(
    trained: Path, store: Store
) -> None:
    address = f"redis://shop:wrong@127.0.0.1:{store.port}/0"
    with serving(trained, "--session-store", address) as server:
        (line,) = until(lambda: server.logged("the session store failed"))
        assert "password" in line["reason"]
        assert "wrong@" not in str(server.log)
        assert click(server, "jan", "i3").status == 503


def test_a_connection_that_is_lost_at_the_last_moment_is_an_error_of_the_store() -> (
    None
):
    """uvloop raises an error of its own."""

    async def lost(*arguments: object) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

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
    with in_process(trained, session_store=store.address()) as server:
        assert click(server, "odd", "i3").status == 503
        for number in range(3):
            assert click(server, "bytes", "i3").status == 503
            assert server.recommend("i4", session_id="bytes").status == 503
            assert click(server, f"after-{number}", "i5").items == best(server, "i5")
    assert store.client.llen(key("bytes")) == 2  # the click is not stored


def unnamed_file(server: Server) -> Path:
    """Where a server stores sessions that was started without --session-store."""
    (line,) = [line for line in server.log if "--session-store" in line["message"]]
    return Path(line["file"])


def test_without_a_named_store_sessions_are_stored_until_the_server_stops(
    plain_server: Server, trained: Path
) -> None:
    assert click(plain_server, "anna", "i3").items == best(plain_server, "i3")
    assert click(plain_server, "anna", "i4").items == best(plain_server, "i3", "i4")
    with serving(trained) as server:
        file = unnamed_file(server)
        # Each server has a file of its own.
        assert server.recommend(session_id="anna").json()["popular"]
        assert file.stat().st_mode & 0o077 == 0
        assert file.parent.stat().st_mode & 0o077 == 0
    assert not file.parent.exists()


def test_what_a_killed_server_stored_is_removed_by_the_next(trained: Path) -> None:
    with serving(trained) as server:
        file = unnamed_file(server)
        click(server, "anna", "i3")
        os.kill(server.process.pid, signal.SIGKILL)
    assert file.exists()
    with serving(trained) as server:
        assert server.recommend(session_id="anna").json()["popular"]
        assert not file.parent.exists()


def test_workers_share_a_file_that_survives_their_kill_and_a_restart(
    trained_with_export: Path, tmp_path: Path
) -> None:
    file = SqliteFile(tmp_path / "not yet there" / "sessions.sqlite")
    items = [f"i{number}" for number in range(30)]
    options = ("--session-store", file.address(), "--workers", 2)
    with serving(trained_with_export, *options, onnx=True) as server:
        server.wait_for("serving", 2)
        for item in items:  # connections are spread over the workers
            assert click(server, "anna", item).status == 200
        for worker in children(server):
            os.kill(worker, signal.SIGKILL)
    assert file.stored("anna") == items
    with serving(trained_with_export, *options, onnx=True) as server:
        assert click(server, "anna", "i3").status == 200
        os.kill(server.process.pid, signal.SIGKILL)
    assert file.stored("anna")[-2:] == ["i29", "i3"]
    content = b"".join(path.read_bytes() for path in file.path.parent.iterdir())
    assert b"anna" not in content  # only its hash is stored
