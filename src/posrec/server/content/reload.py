"""What is read again when it changes on disk: runs, and the shop's files of rules and items.

A changed run is loaded beside the old one, compared with its checksums and tried on sessions before
it takes over. If it can't be used, the error is logged and the old run stays, and likewise a file.
All of it is read in threads, so that no request waits for it.
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
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import usable_cores
from posrec.errors import InputError, plural
from posrec.io import RUN, STATE, WEIGHTS
from posrec.io.unfinished import locked
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.recommender import Recommender, open_recommender
from posrec.recommend.session import ListedIds
from posrec.recommend.try_out import missing_export, try_out
from posrec.runs.folder import Run
from posrec.runs.new_items import find_new_items
from posrec.server.content.item_columns import ItemColumns, read_columns
from posrec.server.content.item_search import ItemSearch
from posrec.server.json_log import log_error, log_event
from posrec.server.metrics import Metrics, RunMetrics
from posrec.server.settings import ServeOptions

POLL = 0.25  # seconds
RETRY = 10.0  # seconds until an unchanged run that could not be loaded is tried again

Stamp = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LoadedRun:
    run: Run  # as it is on disk
    recommender: Recommender  # with the items of the shop's file
    metrics: RunMetrics

    @property
    def fingerprint(self) -> str:
        return self.run.fingerprint

    @cached_property
    def item_search(self) -> ItemSearch:
        return ItemSearch(self.recommender)

    def with_items(self, items: ItemColumns) -> tuple["LoadedRun", dict[str, Any]]:
        """With the items of a file, in place of those of an earlier one; and what the log says."""
        known = self.run.vocabulary.ids[: self.run.config["items"]]
        rows = items.rows(known)
        found = find_new_items(self.run, rows)
        about = {
            "known": len(rows) - len(found.ids) - found.left_out,
            "new": len(found.ids),
            "left_out": found.left_out,
            "columns": [name for name in rows.columns if name != "id"],
        }
        if found.note:
            about["reason"] = found.note
        # Ids of another kind would leave every item without a value.
        if not about["known"]:
            return self, about
        recommender = self.recommender.with_found(self.run, found)
        if recommender.items > len(known):
            try_out(recommender)
        return replace(self, recommender=recommender), about


class WatchedFile:
    """`content` is what `parse` made of the path and the content before; None without a file.
    `count_known` counts its distinct ids that are in a catalogue."""

    def __init__(
        self,
        path: str | None,
        parse: Callable[[Path, Any], Any],
        count_known: Callable[[Any, Catalogue], int],
    ) -> None:
        self.path = None if path is None else Path(path)
        self.parse = parse
        self.count_known = count_known
        self.content: Any = None
        self.seen: Stamp = ()  # of the file that was read last, or could not be read
        self.catalogue: Catalogue | None = None  # of the run that was loaded last

    def read(self) -> None:
        """Raises an InputError if that fails; what was read before then stays."""
        if self.path is not None:
            self.seen = file_stamp(self.path)
            content = self.parse(self.path, self.content)
            if self.content is not None and file_stamp(self.path) != self.seen:
                raise InputError(f"{self.path} has changed while it was read")
            if self.content is not None and self.catalogue is not None:
                self.refuse_half(content, self.catalogue)
            self.content = content

    def refuse_half(self, content: Any, catalogue: Catalogue) -> None:
        before = self.count_known(self.content, catalogue)
        now = self.count_known(content, catalogue)
        if 2 * now < before:
            raise InputError(
                f"{self.path} has {plural(now, 'id')} that the run knows, fewer than half of the "
                f"{before:,} before, as if half of it was missing; if it is whole, start the "
                "server again"
            )

    async def watch(self, apply: Callable[[], None]) -> None:
        if self.path is None:
            return
        async for _ in changes(partial(file_stamp, self.path), self.seen):
            try:
                await asyncio.to_thread(self.read)
                await asyncio.to_thread(apply)
            except Exception as error:  # whatever happens to the file
                log_error(
                    f"{self.path} could not be read again; what was read before stays",
                    reason=str(error),
                )


class ShopFiles:
    def __init__(self, settings: ServeOptions) -> None:
        self.allow = WatchedFile(settings.allow_file, read_ids, count_ids)
        self.deny = WatchedFile(settings.deny_file, read_ids, count_ids)
        read = partial(read_columns, **settings.item_times)
        self.items = WatchedFile(settings.items_file, read, ItemColumns.count_known)
        self.lock = threading.Lock()  # to replace the catalogue of a recommender

    def read(self) -> None:
        for file in (self.allow, self.deny, self.items):
            file.read()

    def with_rules(self, loaded: LoadedRun) -> LoadedRun:
        catalogue = loaded.recommender.catalogue
        allow = known_ids(self.allow, catalogue)
        deny = known_ids(self.deny, catalogue)
        loaded.recommender.catalogue = catalogue.with_rules(allow, deny)
        return loaded

    def with_items(self, loaded: LoadedRun) -> LoadedRun:
        if self.items.content is not None:
            loaded, about = loaded.with_items(self.items.content)
            is_fine = about["known"] and not about["left_out"]
            level = logging.INFO if is_fine else logging.WARNING
            run = str(loaded.run.path)
            log_event("items read", level, file=str(self.items.path), run=run, **about)
        catalogue = loaded.recommender.catalogue
        self.items.catalogue = catalogue
        # Built before a request needs it.
        catalogue.attributes.prepare()
        catalogue.number("")
        return self.with_rules(loaded)


def read_ids(path: Path, before: ListedIds | None) -> ListedIds:
    return ListedIds(path)


def count_ids(listed: ListedIds, catalogue: Catalogue) -> int:
    return len({id for id in listed if catalogue.number(id) is not None})


def known_ids(file: WatchedFile, catalogue: Catalogue) -> list[str] | None:
    file.catalogue = catalogue
    if file.content is None:
        return None
    ids: list[str]
    ids, note = file.content.known(catalogue.number)
    if note:
        log_event(note, logging.WARNING)
    return ids


class RunReloader:
    """Code of the user's own that the command line named is loaded again with every new run."""

    def __init__(
        self,
        run: Path,
        name: str,
        settings: ServeOptions,
        metrics: Metrics,
        files: ShopFiles,
    ) -> None:
        self.run = run
        self.settings = settings
        self.metrics = metrics
        self.files = files
        self.run_metrics = metrics.runs[name]
        self.current: LoadedRun | None = None
        # Of the last attempt to load the run.
        self.stamp: Hashable = None
        self.problem: str | None = None
        self.tried = 0.0

    def load(self) -> LoadedRun:
        settings = self.settings
        cores = max(1, usable_cores() // settings.workers)
        recommender = open_recommender(
            self.run, settings.device, settings.code, settings.onnx, cores
        )
        try_out(recommender)
        return LoadedRun(recommender.run, recommender, self.run_metrics)

    def replace_current(self) -> None:
        before = (self.stamp, self.problem)
        self.stamp = run_stamp(self.run)
        self.tried = time.monotonic()
        try:
            loaded = self.load()
            with self.files.lock:  # what changes from now on is applied to this run
                self.current = self.files.with_items(loaded)
        except Exception as error:  # a damaged file can raise almost anything
            self.problem = str(error) or type(error).__name__
            if (self.stamp, self.problem) != before:  # otherwise it is known
                self.log_problem()
            if is_half_imported("torch"):
                log_error(
                    "torch was imported in part, which can't be repeated; this process ends"
                )
                os.kill(os.getpid(), signal.SIGTERM)
            return
        self.problem = None
        trained_until = loaded.recommender.run.config.get("trained_until")
        self.run_metrics.loaded(loaded.fingerprint, trained_until)

    def log_problem(self) -> None:
        self.metrics.count("failed_reloads")
        consequence = "the run loaded before stays"
        if self.current is None:
            consequence = "nothing can be recommended yet"
        log_error(f"{self.run} can't be served; {consequence}", reason=self.problem)

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
            search=ranker.search.kind,
            recall=round(ranker.search.recall, 4),
        )
        if self.settings.onnx and (missing := missing_export(recommender)):
            log_event(missing)

    async def watch(self) -> None:
        """A run that could not be loaded is tried again: memory may have been short."""
        async for _ in changes(partial(run_stamp, self.run), self.stamp, self.is_due):
            await asyncio.to_thread(self.replace_current)
            self.log_serving("replaced on disk")
            if self.problem is None:
                self.metrics.count("reloads")

    def is_due(self) -> bool:
        return self.problem is not None and time.monotonic() - self.tried >= RETRY


def is_half_imported(package: str) -> bool:
    """For lack of memory or files; the import can't be repeated then."""
    if package in sys.modules:
        return False
    return any(name.startswith(f"{package}.") for name in list(sys.modules))


async def changes(
    stamp: Callable[[], Hashable],
    seen: Hashable,
    is_due: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """Yield whenever the stamp differs from the one seen last, is not None and has stopped
    changing; also when the same stamp `is_due`."""
    while True:
        await asyncio.sleep(POLL)
        with suppress(MemoryError):  # it is looked at again
            now = await asyncio.to_thread(stamp)
            if now is None or (now == seen and not is_due()):
                continue
            await asyncio.sleep(POLL)
            if now == await asyncio.to_thread(stamp):
                seen = now
                yield


def run_stamp(run: Path) -> frozenset[tuple[str, Stamp]] | None:
    """None while a necessary file is missing or `posrec export` replaces files. Checkpoints and
    hidden files do not count: they come and go during a training."""
    stamps = {}
    try:
        with os.scandir(run) as entries:
            for entry in entries:
                if entry.name != STATE and entry.name[0] != ".":
                    stamps[entry.name] = as_stamp(entry.stat())
    except OSError:
        return None
    with locked(run, wait=False) as is_free:
        if is_free and {RUN, WEIGHTS, VOCABULARY} <= stamps.keys():
            return frozenset(stamps.items())
    return None


def file_stamp(path: Path) -> Stamp:
    """Empty if the file is missing, which is a change too."""
    try:
        return as_stamp(path.stat())
    except OSError:
        return ()


def as_stamp(state: os.stat_result) -> Stamp:
    """The time also changes with the permissions."""
    return state.st_ctime_ns, state.st_size, state.st_ino
