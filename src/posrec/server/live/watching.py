"""Watching files for changes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable

POLL = 1.0  # seconds


async def changes(stamp: Callable[[], Hashable], seen: Hashable) -> AsyncIterator[None]:
    """Yield whenever the stamp differs from the one seen last, once it has stopped changing and is not None. `stamp` is
    called in a thread."""
    while True:
        await asyncio.sleep(POLL)
        now = await asyncio.to_thread(stamp)
        if now is None or now == seen:
            continue
        await asyncio.sleep(POLL / 4)
        if now == await asyncio.to_thread(stamp):
            seen = now
            yield
