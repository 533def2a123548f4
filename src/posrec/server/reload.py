"""What is read again when it changes on disk: the runs that are served, and the files of allowed and denied items.

A changed run is loaded beside the old one, compared with its checksums and tried on sessions; only then does it take
over. If it can't be used, the error is logged and the old run stays. The same holds for files that can't be read.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import usable_cores
from posrec.io import RUN, STATE, WEIGHTS
from posrec.io.unfinished import is_locked
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.export.opening import missing_export, open_recommender, try_out
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import read_ids, unknown_ids_note
from posrec.server.feedback import answer_key, new_answer_id
from posrec.server.item_search import ItemSearch
from posrec.server.json_log import log_event
from posrec.server.metrics import Metrics, RunMetrics
from posrec.server.settings import ServerSettings

POLL = 1.0  # seconds

Stamp = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class LoadedRun:
    recommender: Recommender
    item_search: ItemSearch
    fingerprint: str
    metrics: RunMetrics
    answer_key: bytes | None = None  # signs the ids of answers, where feedback on them is written

    def new_answer_id(self, explored: Sequence[str] = ()) -> str:
        return new_answer_id(self.fingerprint, self.metrics.name, self.answer_key, explored)


class RuleFiles:
    """`allow` and `deny` are text files with one item id per line; None for no such file."""

    def __init__(self, allow: str | None, deny: str | None) -> None:
        self.paths = [None if path is None else Path(path) for path in (allow, deny)]
        self.ids: list[list[str] | None] = [None, None]
        self.stamps: tuple[Stamp | None, ...] = ()

    def read(self) -> None:
        """Read both files. An InputError where that fails; what was read before then stays."""
        self.stamps = self.current_stamps()
        self.ids = [None if path is None else read_ids(path) for path in self.paths]

    def apply(self, catalogue: Catalogue) -> None:
        """Recommend from the catalogue only what the rules allow. Ids that it does not know are logged."""
        allow, deny = self.ids
        catalogue.set_rules(allow, deny)
        for path, ids in zip(self.paths, (allow, deny), strict=True):
            if path is not None and (note := unknown_ids_note(path, ids or [], catalogue.number)):
                log_event(note, logging.WARNING)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Read the files again whenever they change, and call `changed` in a thread."""
        if not any(self.paths):
            return
        async for _ in changes(self.current_stamps, self.stamps):
            try:
                await asyncio.to_thread(self.read)
                await asyncio.to_thread(changed)
                allowed, denied = (None if ids is None else len(ids) for ids in self.ids)
                log_event("rules read again", allowed=allowed, denied=denied)
            except Exception as error:  # the watcher must survive whatever happens to the files
                log_event("the rules could not be read again; the ones before stay", logging.ERROR, reason=str(error))

    def current_stamps(self) -> tuple[Stamp | None, ...]:
        """Changes whenever a file does; None for a file that does not exist."""
        return tuple(None if path is None else file_stamp(path) for path in self.paths)


class RunReloader:
    """Serves one run, in metrics under a `name`. `rules` are the server's lists of allowed and denied items.

    Code of the user's own that the command line named is loaded again with every new run.
    """

    def __init__(self, run: Path, name: str, settings: ServerSettings, metrics: Metrics, rules: RuleFiles) -> None:
        self.run, self.settings, self.metrics, self.rules = run, settings, metrics, rules
        self.run_metrics = metrics.runs[name]
        self.current: LoadedRun | None = None
        self.stamp: Hashable = None  # of the run that was loaded last, or could not be loaded
        self.problem: str | None = None

    def load(self) -> LoadedRun:
        """Load the run as it is on disk now, and try it once; raises whatever is wrong with it."""
        settings = self.settings
        cores = max(1, usable_cores() // settings.workers)
        recommender = open_recommender(self.run, settings.device, settings.code, settings.onnx, cores)
        try_out(recommender)
        recommender.catalogue.attributes.prepare()
        self.rules.apply(recommender.catalogue)
        key = answer_key(Path(settings.feedback)) if settings.feedback else None
        return LoadedRun(recommender, ItemSearch(recommender), recommender.run.fingerprint, self.run_metrics, key)

    def replace_current(self) -> None:
        """Load the run and serve it from now on; if it can't be loaded, keep serving the one before."""
        self.stamp = run_stamp(self.run)
        rules = self.rules.ids
        try:
            self.current = self.load()
            if self.rules.ids is not rules:  # they have changed while it was loaded
                self.rules.apply(self.current.recommender.catalogue)
        except Exception as error:  # a damaged file can raise almost anything, and must not stop the server
            self.problem = str(error) or type(error).__name__
            self.metrics.count("failed_reloads")
            consequence = "the run loaded before stays" if self.current else "nothing can be recommended yet"
            log_event(f"{self.run} can't be served; {consequence}", logging.ERROR, reason=self.problem)
            return
        self.problem = None
        self.run_metrics.loaded(self.current.fingerprint, self.current.recommender.run.config.get("trained_until"))

    def log_serving(self, why: str) -> None:
        """Log what is served, unless the last attempt to load a run has failed."""
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
        """Replace the run whenever it has changed on disk."""
        async for _ in changes(partial(run_stamp, self.run), self.stamp):
            await asyncio.to_thread(self.replace_current)
            self.log_serving("replaced on disk")
            if self.problem is None:
                self.metrics.count("reloads")


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


def run_stamp(run: Path) -> frozenset[tuple[str, Stamp]] | None:
    """Changes whenever a file of the run does; None while a necessary file is missing, and while `posrec export`
    replaces files.

    Checkpoints and hidden files are not counted: they come and go while a run is trained.
    """
    try:
        with os.scandir(run) as entries:
            counted = [entry for entry in entries if entry.name != STATE and entry.name[0] != "."]
            stamps = {entry.name: as_stamp(entry.stat()) for entry in counted}
    except OSError:
        return None
    is_whole = {RUN, WEIGHTS, VOCABULARY} <= stamps.keys() and not is_locked(run)
    return frozenset(stamps.items()) if is_whole else None


def file_stamp(path: Path) -> Stamp | None:
    """Changes whenever a file does; None for a file that does not exist."""
    try:
        return as_stamp(path.stat())
    except OSError:
        return None


def as_stamp(state: os.stat_result) -> Stamp:
    return state.st_ctime_ns, state.st_size, state.st_ino  # the time also changes with the permissions
