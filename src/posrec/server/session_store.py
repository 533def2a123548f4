"""Sessions kept in Redis or Valkey: the latest clicks under a session id, forgotten after half an hour without one."""

import hashlib
from collections.abc import Callable
from typing import Any

from posrec.errors import InputError, not_installed

EXPIRY = 30 * 60  # seconds
KEPT = 200  # clicks; no model reads as many
PATIENCE = 0.5  # seconds for the store to answer


class StoreDown(RuntimeError):
    """The store did not answer."""


class SessionStore:
    """`on_error` is called whenever the store does not answer."""

    def __init__(self, url: str, on_error: Callable[[], None] = lambda: None) -> None:
        self.on_error = on_error
        try:
            import redis
            import redis.asyncio
        except ImportError:
            raise not_installed("--session-store", "serve") from None
        self.errors = (redis.RedisError, OSError, TimeoutError)
        try:
            self.client: Any = redis.asyncio.Redis.from_url(
                url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE, decode_responses=True,
                max_connections=64,
            )  # fmt: skip
        except ValueError as error:
            raise InputError(f"--session-store {url}: {error}") from None

    async def add(self, session: str, item: str) -> list[str]:
        """The session's clicks with this one."""
        name = key(session)
        try:
            async with self.client.pipeline(transaction=True) as pipe:
                pipe.rpush(name, item).ltrim(name, -KEPT, -1).expire(name, EXPIRY).lrange(name, 0, -1)
                clicks: list[str] = (await pipe.execute())[-1]
                return clicks
        except self.errors as error:
            self.on_error()
            raise StoreDown(str(error)) from None

    async def clicks(self, session: str) -> list[str]:
        try:
            clicks: list[str] = await self.client.lrange(key(session), 0, -1)
            return clicks
        except self.errors as error:
            self.on_error()
            raise StoreDown(str(error)) from None

    async def close(self) -> None:
        await self.client.aclose()


def key(session: str) -> str:
    """A session id may hold anything and be of any length; its key is short and plain."""
    return "posrec:session:" + hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()
