"""What is read again when it changes on disk: runs, files of allowed and denied items, and columns
of the items.

A changed run is loaded beside the old one, compared with its checksums and tried on sessions; only
then does it take over, by one assignment. If it can't be used, the error is logged and the old run
stays. The same holds for files. All of it is read in threads, so that no request waits for it.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import usable_cores
from posrec.errors import InputError
from posrec.io import RUN, STATE, WEIGHTS
from posrec.io.unfinished import locked
from posrec.recommend.export.opening import missing_export, open_recommender, try_out
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import ListedIds
from posrec.server.content.item_columns import read_columns
from posrec.server.content.item_search import ItemSearch
from posrec.server.json_log import log_event
from posrec.server.metrics import Metrics, RunMetrics
from posrec.server.settings import ServerSettings

POLL = 1.0  # seconds
RETRY = 10.0  # seconds until a run that could not be loaded is tried again, although it has not changed

Stamp = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class LoadedRun:
    recommender: Recommender
    item_search: ItemSearch
    fingerprint: str
    metrics: RunMetrics


class WatchedFile:
    """`content` is what was read last, None without a file; `parse` gets the path and the content
    from before."""

    def __init__(self, path: str | None, parse: Callable[[Path, Any], Any]) -> None:
        self.path = None if path is None else Path(path)
        self.parse = parse
        self.content: Any = None
        self.seen: Hashable = (
            None  # the stamp of the file that was read last, or could not be read
        )

    def stamp(self) -> tuple[Stamp | None]:
        assert self.path is not None
        return (
            file_stamp(self.path),
        )  # not None for a missing file, which is a change too

    def read(self) -> None:
        """An InputError where that fails; what was read before then stays."""
        if self.path is not None:
            self.seen = self.stamp()
            content = self.parse(self.path, self.content)
            if self.content is not None and self.stamp() != self.seen:
                raise InputError(f"{self.path} has changed while it was read")
            self.content = content

    async def watch(self, apply: Callable[[], None]) -> None:
        if self.path is None:
            return
        async for _ in changes(self.stamp, self.seen):
            try:
                await asyncio.to_thread(self.read)
                await asyncio.to_thread(apply)
            except (
                Exception
            ) as error:  # the watcher must survive whatever happens to the file
                about = (
                    f"{self.path} could not be read again; what was read before stays"
                )
                log_event(about, logging.ERROR, reason=str(error))


class ShopFiles:
    def __init__(self, settings: ServerSettings) -> None:
        self.allow, self.deny = (
            WatchedFile(path, lambda path, _: ListedIds(path))
            for path in (settings.allow_file, settings.deny_file)
        )
        self.items = WatchedFile(settings.items_file, read_columns)
        self.lock = (
            threading.Lock()
        )  # for whoever replaces the catalogue of a recommender

    def read(self) -> None:
        for file in (self.allow, self.deny, self.items):
            file.read()

    def apply_rules(self, recommender: Recommender) -> None:
        number = recommender.catalogue.number
        allow, deny = (
            (None, None) if file.content is None else file.content.known(number)
            for file in (self.allow, self.deny)
        )
        recommender.catalogue = recommender.catalogue.with_rules(allow[0], deny[0])
        for note in filter(None, (allow[1], deny[1])):
            log_event(note, logging.WARNING)

    def apply_items(self, recommender: Recommender) -> None:
        catalogue = recommender.catalogue
        if self.items.content is not None:
            columns, about = self.items.content.columns(catalogue)
            level = logging.INFO if about["known"] else logging.WARNING
            log_event("items read", level, file=str(self.items.path), **about)
            if about[
                "known"
            ]:  # ids of another kind would leave every item without a value
                catalogue = catalogue.with_columns(columns)
        catalogue.attributes.prepare()  # before a request needs it
        recommender.catalogue = catalogue


class RunReloader:
    """Code of the user's own that the command line named is loaded again with every new run."""

    def __init__(
        self,
        run: Path,
        name: str,
        settings: ServerSettings,
        metrics: Metrics,
        files: ShopFiles,
    ) -> None:
        self.run = run
        self.settings = settings
        self.metrics = metrics
        self.files = files
        self.run_metrics = metrics.runs[name]
        self.current: LoadedRun | None = None
        self.stamp: Hashable = (
            None  # of the run that was loaded last, or could not be loaded
        )
        self.problem: str | None = None
        self.tried = 0.0  # when it was loaded last, or could not be loaded

    def load(self) -> LoadedRun:
        settings = self.settings
        cores = max(1, usable_cores() // settings.workers)
        recommender = open_recommender(
            self.run, settings.device, settings.code, settings.onnx, cores
        )
        try_out(recommender)
        return LoadedRun(
            recommender,
            ItemSearch(recommender),
            recommender.run.fingerprint,
            self.run_metrics,
        )

    def replace_current(self) -> None:
        before = self.stamp
        self.stamp = run_stamp(self.run)
        self.tried = time.monotonic()
        try:
            loaded = self.load()
            with self.files.lock:  # what changes from now on is applied to this run
                self.files.apply_items(loaded.recommender)
                self.files.apply_rules(loaded.recommender)
                self.current = loaded
        except Exception as error:  # a damaged file can raise almost anything, and must not stop the server
            reason = str(error) or type(error).__name__
            if (self.stamp, reason) != (before, self.problem):  # otherwise it is known
                self.metrics.count("failed_reloads")
                consequence = (
                    "the run loaded before stays"
                    if self.current
                    else "nothing can be recommended yet"
                )
                log_event(
                    f"{self.run} can't be served; {consequence}",
                    logging.ERROR,
                    reason=reason,
                )
            self.problem = reason
            if is_half_imported("torch"):
                log_event(
                    "torch was imported in part, which can't be repeated; this process ends",
                    logging.ERROR,
                )
                os.kill(os.getpid(), signal.SIGTERM)
            return
        self.problem = None
        self.run_metrics.loaded(
            self.current.fingerprint,
            self.current.recommender.run.config.get("trained_until"),
        )

    def log_serving(self, why: str) -> None:
        if self.current is None or self.problem is not None:
            return
        recommender = self.current.recommender
        ranker = recommender.ranker
        log_event(
            "serving",
            run=str(self.run),
            why=why,
            by="onnx" if recommender.uses_onnx else "torch",
            items=ranker.items,
            search=ranker.search_kind,
            recall=round(ranker.recall, 4),
        )
        if self.settings.onnx and (missing := missing_export(recommender)):
            log_event(missing)

    async def watch(self) -> None:
        """A run that could not be loaded is tried again: memory or open files may have been short."""
        async for _ in changes(partial(run_stamp, self.run), self.stamp, self.is_due):
            await asyncio.to_thread(self.replace_current)
            self.log_serving("replaced on disk")
            if self.problem is None:
                self.metrics.count("reloads")

    def is_due(self) -> bool:
        return self.problem is not None and time.monotonic() - self.tried >= RETRY


def is_half_imported(package: str) -> bool:
    """For lack of memory or files; the import can't be repeated then."""
    return package not in sys.modules and any(
        name.startswith(f"{package}.") for name in list(sys.modules)
    )


async def changes(
    stamp: Callable[[], Hashable],
    seen: Hashable,
    is_due: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """Yield whenever the stamp differs from the one seen last, is not None and has stopped
    changing; and where `is_due`, although it is the same."""
    while True:
        await asyncio.sleep(POLL)
        with suppress(MemoryError):  # it is looked at again
            now = await asyncio.to_thread(stamp)
            if now is None or (now == seen and not is_due()):
                continue
            await asyncio.sleep(POLL / 4)
            if now == await asyncio.to_thread(stamp):
                seen = now
                yield


def run_stamp(run: Path) -> frozenset[tuple[str, Stamp]] | None:
    """None while a necessary file is missing, and while `posrec export` replaces files. Checkpoints
    and hidden files are not counted: they come and go while a run is trained."""
    try:
        with os.scandir(run) as entries:
            counted = [
                entry
                for entry in entries
                if entry.name != STATE and entry.name[0] != "."
            ]
            stamps = {entry.name: as_stamp(entry.stat()) for entry in counted}
    except OSError:
        return None
    with locked(run, wait=False) as is_free:
        return (
            frozenset(stamps.items())
            if is_free and {RUN, WEIGHTS, VOCABULARY} <= stamps.keys()
            else None
        )


def file_stamp(path: Path) -> Stamp | None:
    try:
        return as_stamp(path.stat())
    except OSError:
        return None


def as_stamp(state: os.stat_result) -> Stamp:
    return (
        state.st_ctime_ns,
        state.st_size,
        state.st_ino,
    )  # the time also changes with the permissions
