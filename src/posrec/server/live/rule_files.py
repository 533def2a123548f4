"""Files of item ids that the server always allows or never recommends, read again when they change."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.recommend.session import read_ids
from posrec.server.json_log import log_event
from posrec.server.live.watching import changes

if TYPE_CHECKING:  # the parent of several workers checks the files, and has no use for torch
    from posrec.recommend.catalogue import Catalogue

Stamp = tuple[tuple[int, int, int] | None, ...]


class RuleFiles:
    """`allow` and `deny` are text files with one item id per line; None for no such file."""

    def __init__(self, allow: str | None, deny: str | None) -> None:
        self.paths = [None if path is None else Path(path) for path in (allow, deny)]
        self.ids: list[list[str] | None] = [None, None]
        self.stamp: Stamp = ()

    def read(self) -> None:
        """Read both files. An InputError where that fails; what was read before then stays."""
        self.stamp = self.current_stamp()
        self.ids = [None if path is None else read_ids(path) for path in self.paths]

    def apply(self, catalogue: "Catalogue") -> None:
        """Recommend from the catalogue only what the rules allow."""
        allow, deny = self.ids
        catalogue.set_rules(allow, deny)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Read the files again whenever they change, and call `changed` in a thread."""
        if not any(self.paths):
            return
        async for _ in changes(self.current_stamp, self.stamp):
            try:
                await asyncio.to_thread(self.read)
                await asyncio.to_thread(changed)
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
