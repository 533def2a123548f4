"""The run that is being served, and its replacement when the run folder changes on disk.

A changed run is loaded beside the old one, compared with its checksums and tried on sessions; only then does it take
over. If it can't be used, the error is logged and the old run stays.
"""

import asyncio
import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.io import RUN, STATE, WEIGHTS
from posrec.io.unfinished import is_locked
from posrec.models.own_code import OwnCode
from posrec.recommend.export.opening import missing_export, open_recommender, try_out
from posrec.recommend.recommender import Recommender
from posrec.server.item_search import ItemSearch
from posrec.server.json_log import log_event
from posrec.server.live.rule_files import RuleFiles
from posrec.server.live.watching import changes
from posrec.server.metrics import Metrics

Stamp = frozenset[tuple[str, int, int, int]]


@dataclass(frozen=True)
class LoadedRun:
    recommender: Recommender
    item_search: ItemSearch
    fingerprint: str


class RunReloader:
    """`use_export`: compute with the run's export where it has one.

    `code` is what the command line named for a run of the user's own model or encoding. It is loaded again with every
    new run. `rules` are the server's lists of allowed and denied items. `cores` may be used for one search.
    """

    def __init__(
        self,
        run: Path,
        device: str,
        use_export: bool,
        metrics: Metrics,
        code: OwnCode | None = None,
        rules: RuleFiles | None = None,
        cores: int = 1,
    ) -> None:
        self.run, self.device, self.use_export, self.metrics, self.rules = run, device, use_export, metrics, rules
        self.code, self.cores = code, cores
        self.current: LoadedRun | None = None
        self.stamp: Stamp | None = None  # of the run that is served, or of the one that could not be loaded
        self.problem: str | None = None

    def load(self) -> LoadedRun:
        """Load the run as it is on disk now, and try it once; raises whatever is wrong with it."""
        recommender = open_recommender(self.run, self.device, self.code, self.use_export, self.cores)
        try_out(recommender)
        recommender.catalogue.attributes.prepare()
        if self.rules is not None:
            self.rules.apply(recommender.catalogue)
        return LoadedRun(recommender, ItemSearch(recommender), recommender.run.fingerprint)

    def start(self) -> None:
        """Load the run for the first time, without a log line: the server may not listen yet.

        If it can't be loaded, `watch` waits until it can.
        """
        self.stamp = stamp(self.run)
        self.replace_current()

    def take_over(self, why: str) -> None:
        """Serve the run as it is on disk now, and log it."""
        self.replace_current()
        self.log_serving(why)

    def replace_current(self) -> None:
        """Load the run and serve it from now on; if it can't be loaded, keep serving the one before."""
        try:
            self.current = self.load()
            if self.rules is not None:
                self.rules.apply(self.current.recommender.catalogue)  # they may have changed while it was loaded
        except Exception as error:  # a damaged file can raise almost anything, and must not stop the server
            self.problem = str(error) or type(error).__name__
            self.metrics.count("failed_reloads")
            kept = "the run loaded before stays" if self.current else "nothing can be recommended yet"
            log_event(f"{self.run} can't be served; {kept}", logging.ERROR, reason=self.problem)
            return
        self.problem = None

    def log_serving(self, why: str) -> None:
        """Log what is served, unless the last attempt to load a run has failed."""
        if self.current is None or self.problem is not None:
            return
        recommender = self.current.recommender
        ranker = recommender.ranker
        log_event(
            "serving", run=str(self.run), why=why, by="onnx" if recommender.uses_onnx else "torch",
            items=ranker.items, search=ranker.search_kind, recall=round(ranker.recall, 4),
        )  # fmt: skip
        if self.use_export and (missing := missing_export(recommender)):
            log_event(missing)

    async def watch(self) -> None:
        """Replace the run whenever it has changed on disk."""
        async for _ in changes(partial(stamp, self.run), self.stamp):
            await asyncio.to_thread(self.take_over, "replaced on disk")
            if self.problem is None:
                self.metrics.count("reloads")


def stamp(run: Path) -> Stamp | None:
    """Changes whenever a file of the run does, also in its permissions; None while a necessary file is missing, and
    while files are replaced, as `posrec export` does.

    Checkpoints and hidden files are not counted: they come and go while a run is trained.
    """
    try:
        with os.scandir(run) as entries:
            states = {entry.name: entry.stat() for entry in entries if entry.name != STATE and entry.name[0] != "."}
    except OSError:
        return None
    if not {RUN, WEIGHTS, VOCABULARY} <= states.keys() or is_locked(run):
        return None
    return frozenset((name, found.st_ctime_ns, found.st_size, found.st_ino) for name, found in states.items())
