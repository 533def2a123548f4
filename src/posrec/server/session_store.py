"""Sessions stored in Redis or Valkey: the latest clicks of each session, deleted after 30 minutes without a click."""

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from posrec.errors import InputError, not_installed
from posrec.server.http.messages import Refused

EXPIRY = 30 * 60  # seconds
MAX_CLICKS = 200  # of a session, the latest
TIMEOUT = 0.5  # seconds for the store to answer
CONNECTIONS = 64  # of a worker to the store


class StoreUnavailable(Refused):
    """The store did not answer."""

    def __init__(self) -> None:
        super().__init__(503, "the session store can't be used now; send the whole session instead")


class SessionStore:
    """`on_error` is called with the reason whenever the store fails."""

    def __init__(self, url: str, on_error: Callable[[str], None] = lambda reason: None) -> None:
        self.on_error = on_error
        try:
            import redis
            import redis.asyncio
        except ImportError:
            raise not_installed("--session-store", "serve") from None
        self.errors = (redis.RedisError, OSError, TimeoutError, UnicodeDecodeError)
        try:
            # When all connections are in use, a request waits for one: the store itself is well.
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                socket_timeout=TIMEOUT,
                socket_connect_timeout=TIMEOUT,
                timeout=TIMEOUT,
                max_connections=CONNECTIONS,
            )
            self.client: Any = redis.asyncio.Redis.from_pool(pool)
        except ValueError as error:
            # The reason may quote a part of the password.
            reason = "must be redis://USER:PASSWORD@HOST:PORT/DB, special characters escaped" if "@" in url else error
            raise InputError(f"--session-store {without_password(url)}: {reason}") from None

    async def add(self, session: str, item: str) -> list[str]:
        """Add a click; returns all stored clicks of the session, the new one last."""
        name = key(session)
        try:
            async with self.client.pipeline(transaction=True) as pipe:
                pipe.rpush(name, item).ltrim(name, -MAX_CLICKS, -1).expire(name, EXPIRY).lrange(name, 0, -1)
                stored = (await pipe.execute())[-1]
            try:
                return decoded(stored)
            except UnicodeDecodeError:  # another program has written to this key
                await self.client.lrem(name, -1, item)  # a client that asks again would store it twice
                raise
        except self.errors as error:
            raise self.failed(error) from None

    async def clicks(self, session: str) -> list[str]:
        try:
            return decoded(await self.client.lrange(key(session), -MAX_CLICKS, -1))
        except self.errors as error:
            raise self.failed(error) from None

    def failed(self, error: Exception) -> StoreUnavailable:
        self.on_error(str(error) or type(error).__name__)
        return StoreUnavailable()

    async def close(self) -> None:
        await self.client.aclose()


def decoded(clicks: list[bytes]) -> list[str]:
    """Not done by the client: it would leave the rest of an answer that it can't decode to the next request."""
    return [click.decode("utf-8") for click in clicks]


def key(session: str) -> str:
    """A session id may have any characters and any length, so the key is a hash of it."""
    return "posrec:session:" + hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()


def password_in(url: str) -> str | None:
    """The password in an address such as redis://user:password@host:6379/0."""
    with suppress(ValueError):
        return urlsplit(url).password
    return None


def without_password(url: str) -> str:
    """For messages.

    >>> without_password("redis://shop:secret@127.0.0.1:6379/0")
    'redis://***@127.0.0.1:6379/0'
    """
    return re.sub(r"//.*@", "//***@", url)
