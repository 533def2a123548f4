"""Sessions between requests: the latest clicks of each session, deleted after 30 minutes without a
click.

There are two stores with the same methods: a SQLite file for the workers of one machine, and Redis
or Valkey for several machines. Both store only the hashes of session ids.
"""

import asyncio
import hashlib
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from posrec.errors import InputError, RunFailed, not_installed
from posrec.server.errors import Refused

Result = TypeVar("Result")
OnError = Callable[[str], None]

EXPIRY = 30 * 60  # seconds
# Seconds for which the deletion of a session is remembered: a click that was received before, and
# has waited in another process, is not stored any more.
MARK_EXPIRY = 60
MAX_CLICKS = 200  # of a session, the latest
TIMEOUT = 0.5  # seconds for the store to answer
CONNECTIONS = 64  # of a worker to Redis
MOST_WAITING = 128  # requests of a worker
# How an address begins.
SQLITE = "sqlite:"
REDIS = ("redis://", "rediss://", "unix://")
MOST_PAGES = (1 << 30) // 4096  # of a SQLite file; when it is full, old sessions go
DELETED_AT_ONCE = 100  # sessions, so that others do not wait for long
MOST_EVICTIONS = 20  # to make room for one session in a full file
# A timeout is an OSError.
SQLITE_ERRORS = (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError, OSError)
APPLICATION_ID = 0x706F7372  # "posr": by which SQLite files of ours are known
TABLE = (
    "CREATE TABLE IF NOT EXISTS sessions "
    "(id BLOB PRIMARY KEY, expires REAL NOT NULL, clicks BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS sessions_by_expiry ON sessions (expires)",
    f"PRAGMA application_id={APPLICATION_ID}",
)
PRAGMAS = (
    "journal_mode=WAL",  # readers and a writer do not wait for each other
    # A killed process loses nothing; a power failure may lose the last transactions.
    "synchronous=NORMAL",
    "secure_delete=ON",  # deleted sessions are overwritten with zeros
    f"journal_size_limit={1 << 24}",
    f"max_page_count={MOST_PAGES}",
)
STORE = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)"
NO_CLICKS = b"[]"
DELETE_FIRST = (
    "DELETE FROM sessions WHERE rowid IN (SELECT rowid FROM sessions "
    f"WHERE expires <= ? ORDER BY expires LIMIT {DELETED_AT_ONCE})"
)


class StoreUnavailable(Refused):
    def __init__(self) -> None:
        super().__init__(
            503, "the session store can't be used now; send the whole session instead"
        )


class Using:
    """Counts the requests that wait for a store. A stuck store must not take the memory and the
    time of requests that do not use it."""

    def __init__(self, on_error: OnError, errors: tuple[type[Exception], ...]) -> None:
        self.on_error = on_error
        self.errors = errors
        self.waiting = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.waiting >= MOST_WAITING:
            self.on_error(f"{MOST_WAITING} requests wait for it")
            raise StoreUnavailable
        self.waiting += 1
        try:
            yield
        except self.errors as error:
            self.on_error(str(error) or type(error).__name__)
            raise StoreUnavailable from None
        finally:
            self.waiting -= 1


def open_store(address: str, on_error: OnError = lambda reason: None) -> "SessionStore":
    """When the store fails, `on_error` gets the reason, and StoreUnavailable is raised."""
    if address.startswith(SQLITE):
        return SqliteSessions(address, on_error)
    if address.startswith(REDIS):
        return RedisSessions(address, on_error)
    raise address_error(address, "it must be sqlite:FILE or redis://HOST:PORT/DB")


def address_error(address: str, reason: str) -> InputError:
    return InputError(f"--session-store {without_password(address)}: {reason}")


def delete_sessions(address: str, sessions: Iterable[str]) -> int:
    """Returns how many were stored."""
    reasons: list[str] = []
    store = open_store(address, reasons.append)
    if isinstance(store, SqliteSessions) and not store.path.exists():
        raise address_error(address, "there is no such file")

    async def delete() -> tuple[int, bool]:
        try:
            count = sum([await store.delete(session) for session in sessions])
            return count, await store.delete_expired()
        finally:
            await store.close()

    shown = f"--session-store {without_password(address)}"
    try:
        count, is_gone = asyncio.run(delete())
    except StoreUnavailable:
        raise RunFailed(f"{shown} can't be used ({reasons[-1]})") from None
    if not is_gone:
        raise RunFailed(
            f"{shown}: the sessions are deleted, but the file's -wal still has their clicks, "
            "because another process is reading it; a server removes them within a minute "
            "after that, or repeat the command"
        )
    return count


class RedisSessions:
    def __init__(self, address: str, on_error: OnError) -> None:
        try:
            import redis
            import redis.asyncio
        except ImportError:
            raise not_installed("--session-store", "serve") from None
        # The RuntimeError is uvloop's for writing to a lost connection.
        errors = (redis.RedisError, OSError, UnicodeDecodeError, RuntimeError)
        self.using = Using(on_error, errors)
        try:
            # When all connections are in use, a request waits for one: the store itself is well.
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                address,
                socket_timeout=TIMEOUT,
                socket_connect_timeout=TIMEOUT,
                timeout=TIMEOUT,
                max_connections=CONNECTIONS,
            )
            self.client: Any = redis.asyncio.Redis.from_pool(pool)
        except ValueError as error:
            reason = str(error)
            # The reason may quote a part of the password.
            if without_password(address) != address:
                form = "redis://USER:PASSWORD@HOST:PORT/DB"
                reason = f"must be {form}, special characters escaped"
            raise address_error(address, reason) from None

    async def add(
        self, session: str, item: str, received: float = math.inf
    ) -> list[str]:
        """Returns all stored clicks of the session, the new one last. `received` is when the
        request was."""
        name = key(session)
        with self.using():
            async with self.client.pipeline(transaction=True) as pipe:
                pipe.rpush(name, item)
                pipe.ltrim(name, -MAX_CLICKS, -1)
                pipe.expire(name, EXPIRY)
                pipe.lrange(name, 0, -1)
                pipe.get(mark(session))
                *_, stored, deleted = await pipe.execute()
            if deleted is not None and float(deleted) > received:
                await self.client.lrem(name, -1, item)
                return [item]
            try:
                return decoded(stored)
            except UnicodeDecodeError:  # another program has written to this key
                # A client that asks again would store its click twice.
                await self.client.lrem(name, -1, item)
                raise

    async def clicks(self, session: str) -> list[str]:
        with self.using():
            return decoded(await self.client.lrange(key(session), -MAX_CLICKS, -1))

    async def delete(self, session: str) -> bool:
        """Returns whether the session was stored."""
        with self.using():
            async with self.client.pipeline(transaction=True) as pipe:
                pipe.delete(key(session))
                pipe.set(mark(session), time.time(), ex=MARK_EXPIRY)
                return bool((await pipe.execute())[0])

    async def delete_expired(self) -> bool:
        """Redis does so by itself."""
        return True

    async def close(self) -> None:
        await self.client.aclose()


def decoded(clicks: list[bytes]) -> list[str]:
    """The client would leave the rest of an answer that it can't decode to the next request."""
    return [click.decode("utf-8") for click in clicks]


class SqliteSessions:
    """Used in a thread, so that a slow disk delays only requests for stored sessions, and these at
    most until the timeout."""

    def __init__(self, address: str, on_error: OnError) -> None:
        self.using = Using(on_error, SQLITE_ERRORS)
        self.address = address
        name, _, query = address.removeprefix(SQLITE).partition("?")
        self.path = Path(name)
        try:
            self.timeout = float(parse_qs(query).get("timeout", [TIMEOUT])[-1])
        except ValueError:
            raise address_error(
                address, "timeout must be a number of seconds"
            ) from None
        if not name or self.path.is_dir():
            raise address_error(address, "it must be sqlite:FILE")
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="posrec-sessions")
        # Nothing waits in the thread's own queue, which has no limit.
        self.turn = asyncio.Semaphore(1)
        self.opened: sqlite3.Connection | None = None
        self.opened_file: tuple[int, int] | None = None

    def check(self) -> None:
        try:
            self.connection().execute("SELECT 1 FROM sessions").fetchone()
        except SQLITE_ERRORS as error:
            raise address_error(
                self.address, f"the file can't be used ({error})"
            ) from None
        finally:
            self.disconnect()

    async def add(
        self, session: str, item: str, received: float = math.inf
    ) -> list[str]:
        return await self.run(add_click, hashed(session), item, received)

    async def clicks(self, session: str) -> list[str]:
        return await self.run(stored_clicks, hashed(session))

    async def delete(self, session: str) -> bool:
        return await self.run(delete_clicks, hashed(session))

    async def delete_expired(self) -> bool:
        """Returns whether nothing is left of what was deleted."""
        deleted = DELETED_AT_ONCE
        while deleted == DELETED_AT_ONCE:
            deleted = await self.run(changed_rows, DELETE_FIRST, time.time())
        # What was deleted is in the log of changes until that is copied into the file.
        return await self.run(checkpoint)

    async def close(self) -> None:
        self.thread.submit(self.disconnect)
        await asyncio.to_thread(self.thread.shutdown)

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Work that takes too long is not waited for; the next begins when it has ended."""
        with self.using():
            async with asyncio.timeout(self.timeout):
                await self.turn.acquire()
                done = asyncio.get_running_loop().run_in_executor(
                    self.thread, self.run_in_thread, work, *arguments
                )
                done.add_done_callback(self.end_turn)
                return await asyncio.shield(done)

    def end_turn(self, done: asyncio.Future[Any]) -> None:
        self.turn.release()
        if not done.cancelled():
            done.exception()  # asyncio would log an error that nobody has looked at

    def run_in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return work(self.connection(), *arguments)
        except SQLITE_ERRORS:
            self.disconnect()  # the file may be another one when it is opened again
            raise

    def connection(self) -> sqlite3.Connection:
        """A new one if the file was removed or replaced."""
        if self.opened is not None and self.opened_file == file_number(self.path):
            return self.opened
        self.disconnect()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Only this user may read it.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        # SQLite gives up before the timeout, so that its reason is known.
        seconds = 0.8 * self.timeout
        self.opened = sqlite3.connect(
            self.path, seconds, isolation_level=None, check_same_thread=False
        )
        self.opened_file = file_number(self.path)
        create_table(self.opened)
        return self.opened

    def disconnect(self) -> None:
        if self.opened is not None:
            with suppress(sqlite3.Error):
                self.opened.close()
            self.opened = None


SessionStore = RedisSessions | SqliteSessions


def create_table(connection: sqlite3.Connection) -> None:
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    if owner != APPLICATION_ID:
        if owner or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise sqlite3.DatabaseError("it is a database of another program")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in TABLE:
                connection.execute(statement)
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").fetchall()


def stored_clicks(connection: sqlite3.Connection, session: bytes) -> list[str]:
    statement = "SELECT clicks FROM sessions WHERE id = ? AND expires > ?"
    row = connection.execute(statement, (session, time.time())).fetchone()
    return [] if row is None else msgspec.json.decode(row[0], type=list[str])


def deletion_time(connection: sqlite3.Connection, session: bytes) -> float:
    """By the mark of a deleted session, a row without clicks."""
    statement = "SELECT expires FROM sessions WHERE id = ? AND clicks = ?"
    row = connection.execute(statement, (session, NO_CLICKS)).fetchone()
    return -math.inf if row is None else row[0] - MARK_EXPIRY


def delete_clicks(connection: sqlite3.Connection, session: bytes) -> bool:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        was_stored = bool(stored_clicks(connection, session))
        row = (session, time.time() + MARK_EXPIRY, NO_CLICKS)
        connection.execute(STORE, row)
    return was_stored


def add_click(
    connection: sqlite3.Connection, session: bytes, item: str, received: float
) -> list[str]:
    """When the file is full, the sessions that end first make room."""
    for _ in range(MOST_EVICTIONS):
        try:
            return store_click(connection, session, item, received)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            if not changed_rows(connection, DELETE_FIRST, math.inf):
                raise
    raise sqlite3.OperationalError("there is no room for the session")


def store_click(
    connection: sqlite3.Connection, session: bytes, item: str, received: float
) -> list[str]:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if received < deletion_time(connection, session):
            return [item]
        clicks = [*stored_clicks(connection, session), item][-MAX_CLICKS:]
        row = (session, time.time() + EXPIRY, msgspec.json.encode(clicks))
        connection.execute(STORE, row)
    return clicks


def changed_rows(connection: sqlite3.Connection, statement: str, *values: Any) -> int:
    return connection.execute(statement, values).rowcount


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Returns whether no other process has kept it from being complete."""
    row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    is_busy, _, _ = row
    return not is_busy


def file_number(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_dev, state.st_ino


def hashed(session: str) -> bytes:
    """A session id may have any characters and any length, and may identify a person."""
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).digest()


def key(session: str) -> str:
    return "posrec:session:" + hashed(session).hex()


def mark(session: str) -> str:
    return "posrec:deleted:" + hashed(session).hex()


def without_password(address: str) -> str:
    """
    >>> without_password("redis://shop:secret@127.0.0.1:6379/0")
    'redis://***@127.0.0.1:6379/0'
    >>> without_password("unix:///run/redis.sock?password=secret")
    'unix:///run/redis.sock?***'
    """
    if address.startswith(SQLITE):
        return address
    place, question, query = address.partition("?")
    if "@" in query:  # of the password, too, which is not escaped
        return f"{place.partition(':')[0]}:***"
    place = re.sub(r"^(\w+:)?(//)?.*@", r"\1\2***@", place)
    return f"{place}?***" if question else place
