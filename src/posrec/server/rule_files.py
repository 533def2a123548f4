"""Files of item ids that the server always allows or never recommends, read again when they change."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.recommend.session import read_ids
from posrec.server.log import log_event

if TYPE_CHECKING:  # the parent of several workers checks the files, and has no use for torch
    from posrec.recommend.catalogue import Catalogue

POLL = 1.0  # seconds

Stamp = tuple[tuple[int, int, int] | None, ...]


class RuleFiles:
    """`allow` and `deny` are text files with one item id per line; None for no such file."""

    def __init__(self, allow: str | None, deny: str | None) -> None:
        self.paths = [None if path is None else Path(path) for path in (allow, deny)]
        self.ids: list[list[str] | None] = [None, None]
        self.stamp: Stamp = ()

    def read(self) -> None:
        """Read both files. An InputError where that fails; what was read before then stays."""
        stamp = self.current_stamp()
        try:
            self.ids = [None if path is None else read_ids(path) for path in self.paths]
        finally:
            self.stamp = stamp  # a file that can't be read is tried again once it has changed

    def apply(self, catalogue: "Catalogue") -> None:
        """Recommend from the catalogue only what the rules allow."""
        allow, deny = self.ids
        catalogue.set_rules(allow, deny)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Read the files again whenever they change, and call `changed` in a thread."""
        if not any(self.paths):
            return
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL)
            now = await loop.run_in_executor(None, self.current_stamp)
            if now == self.stamp:
                continue
            await asyncio.sleep(POLL / 4)
            if now != await loop.run_in_executor(None, self.current_stamp):
                continue  # still being written
            try:
                await loop.run_in_executor(None, self.read)
                await loop.run_in_executor(None, changed)
                allow, deny = self.ids
                allowed = None if allow is None else len(allow)
                log_event("rules read again", allowed=allowed, denied=None if deny is None else len(deny))
            except Exception as error:  # the watcher must survive whatever happens to the files
                log_event("the rules could not be read again; the ones before stay", logging.ERROR, reason=str(error))

    def current_stamp(self) -> Stamp:
        """Changes whenever a file does; None for a file that does not exist."""
        return tuple(None if path is None else stamp_of(path) for path in self.paths)


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ctime_ns, state.st_size, state.st_ino  # its time also changes with the permissions
