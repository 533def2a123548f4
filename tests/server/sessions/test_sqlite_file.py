"""The SQLite file of sessions: what it holds, and what happens where it can't be used."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from posrec.server import session_store as module
from posrec.server.session_store import SqliteSessions, StoreUnavailable, open_store
from tests.helpers import command, listed
from tests.server.full_disk import largest_file
from tests.server.sessions.store_process import SqliteFile


@pytest.fixture
def file(tmp_path: Path) -> SqliteFile:
    return SqliteFile(tmp_path / "file")


@pytest.fixture
def reasons() -> list[str]:
    """Why the store failed, as the log would say it."""
    return []


@pytest.fixture
def sessions(file: SqliteFile, reasons: list[str]) -> SqliteSessions:
    return opened(file, reasons)


def opened(file: SqliteFile, reasons: list[str]) -> SqliteSessions:
    sessions = open_store(file.address(), reasons.append)
    assert isinstance(sessions, SqliteSessions)
    return sessions


def test_deleted_and_expired_sessions_leave_nothing_in_the_file(
    sessions: SqliteSessions, file: SqliteFile, tmp_path: Path
) -> None:
    async def use() -> None:
        for number in range(250):
            await sessions.add(f"s{number}", f"secret-{number}")
        assert await sessions.delete("s0")
        assert not await sessions.delete("s0")
        file.execute("UPDATE sessions SET expires = 1 WHERE rowid > 10")
        await sessions.delete_expired()
        assert file.execute("SELECT count(*) FROM sessions") == [(9,)]
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"secret-5" in content
        assert b"secret-0" not in content
        assert b"secret-200" not in content
        await sessions.close()

    asyncio.run(use())
    assert listed(tmp_path) == ["file"]


def test_forget_says_if_another_reader_keeps_the_clicks(
    sessions: SqliteSessions, file: SqliteFile, tmp_path: Path
) -> None:
    def secrets() -> bool:
        return any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())

    arguments = ("--visitor", "anna", "--session-store", f"sqlite:{file.path}")
    asyncio.run(sessions.add("anna", "secret"))
    reader = sqlite3.connect(file.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM sessions").fetchall()
    done = command("forget", *arguments)
    assert done.code == 1
    assert "repeat the command" in done.err
    assert secrets()
    reader.close()
    assert command("forget", *arguments).code == 0
    assert not secrets()
    asyncio.run(sessions.close())


def test_a_full_file_makes_room_by_the_sessions_that_end_first(
    file: SqliteFile, reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    megabyte = 1 << 20
    pragmas = (*module.PRAGMAS, f"max_page_count={megabyte // 4096}")
    monkeypatch.setattr(module, "PRAGMAS", pragmas)
    sessions = opened(file, reasons)

    async def fill() -> None:
        for number in range(3000):
            assert await sessions.add(f"s{number}", "x" * 1000) == ["x" * 1000]
        assert await sessions.clicks("s0") == []
        for number in range(2900, 3000):
            assert len(await sessions.clicks(f"s{number}")) == 1
        await sessions.close()

    asyncio.run(fill())
    assert reasons == []
    assert file.path.stat().st_size <= megabyte


def test_a_full_disk_is_an_error_that_loses_nothing(
    sessions: SqliteSessions, reasons: list[str]
) -> None:
    async def fill() -> None:
        await sessions.add("anna", "i3")
        with largest_file(1), pytest.raises(StoreUnavailable):
            await sessions.add("anna", "i4")
        assert await sessions.add("anna", "i5") == ["i3", "i5"]
        await sessions.close()

    asyncio.run(fill())
    assert len(reasons) == 1


def is_usable(file: SqliteFile, reasons: list[str]) -> bool:
    """A click is added and read, or both fail."""
    sessions = opened(file, reasons)

    async def use() -> bool:
        try:
            assert await sessions.add("anna", "i3") == ["i3"]
            assert await sessions.clicks("anna") == ["i3"]
        except StoreUnavailable:
            with pytest.raises(StoreUnavailable):
                await sessions.clicks("anna")
            return False
        finally:
            await sessions.close()
        return True

    return asyncio.run(use())


def test_what_another_program_writes_to_the_file_is_an_error_until_it_is_gone(
    file: SqliteFile, reasons: list[str]
) -> None:
    file.path.write_bytes(b"not a database " * 1000)
    assert not is_usable(file, reasons)
    assert "not a database" in reasons[0]
    file.path.unlink()
    assert is_usable(file, reasons)
    file.execute("UPDATE sessions SET clicks = '[1, 2]'")
    assert not is_usable(file, reasons)
    assert file.execute("SELECT clicks FROM sessions") == [("[1, 2]",)]


def test_an_operator_may_delete_the_file(
    sessions: SqliteSessions, file: SqliteFile, reasons: list[str]
) -> None:
    async def use() -> None:
        await sessions.add("anna", "i3")
        file.path.unlink()
        assert await sessions.add("anna", "i4") == ["i4"]
        await sessions.close()

    asyncio.run(use())
    assert reasons == []


def test_a_slow_disk_keeps_only_those_waiting_who_asked_for_a_session(
    sessions: SqliteSessions,
) -> None:
    sessions.timeout = 0.2
    ended = threading.Event()

    async def use() -> None:
        with pytest.raises(StoreUnavailable):
            await sessions.run(lambda connection: ended.wait(60))
        questions = [sessions.clicks("anna") for _ in range(500)]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        ended.set()
        sessions.timeout = 60
        assert await sessions.add("anna", "i3") == ["i3"]
        await sessions.close()

    asyncio.run(use())


@pytest.mark.parametrize(
    ("store", "keyword"),
    [
        ("sqlite:", "sqlite:FILE"),
        ("sqlite:{folder}", "sqlite:FILE"),
        ("sqlite:{folder}/text", "database"),
        ("sqlite:{folder}/others", "another program"),
        ("sqlite:{folder}/new?timeout=soon", "timeout"),
        ("sessions.sqlite", "redis://HOST:PORT/DB"),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_at_the_start(
    trained: Path, tmp_path: Path, store: str, keyword: str
) -> None:
    (tmp_path / "text").write_text("a text, not a database" * 100)
    with sqlite3.connect(tmp_path / "others") as others:
        others.execute("CREATE TABLE customers (name)")
    address = store.format(folder=tmp_path)
    done = command("serve", trained, "--port", 0, "--session-store", address)
    assert done.code == 2, done.err
    assert keyword in " ".join(done.err.split())
    assert listed(tmp_path) == ["others", "text"]
