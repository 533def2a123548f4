"""The run that is being served, and its replacement when the run folder changes on disk.

A changed run is loaded beside the old one, compared with its checksums and tried on sessions; only then does it take
over. If it can't be used, the error is logged and the old run stays. The first start does not wait for the run's
artifacts (recommend/artifacts.py): torch and the exact search answer until the ONNX export and the index are built.
"""

import asyncio
import logging
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.errors import NotInstalled
from posrec.io import RUN, STATE, WEIGHTS
from posrec.models.own_code import OwnCode
from posrec.recommend.artifacts import NO_ARTIFACTS, ArtifactCache, Artifacts, failure
from posrec.recommend.recommender import Recommender
from posrec.recommend.stored_run import open_stored
from posrec.recommend.trial import try_out
from posrec.run_folder import AnyRun
from posrec.server.item_search import ItemSearch
from posrec.server.log import log_event
from posrec.server.metrics import Metrics
from posrec.server.rule_files import RuleFiles

POLL = 1.0  # seconds
BUILD_GRACE = 5.0  # seconds that a build has to stop

Stamp = frozenset[tuple[str, int, int, int]]


@dataclass(frozen=True)
class LoadedRun:
    recommender: Recommender
    item_search: ItemSearch
    fingerprint: str


class RunReloader:
    """Without a `cache` no artifacts are built or used: torch computes, with an exact search on a CPU.

    `code` is what the command line named for a run of the user's own model or encoding. It is loaded again with every
    new run. `rules` are the server's lists of allowed and denied items. `cores` may be used for one search.
    """

    def __init__(
        self,
        run: Path,
        device: str,
        cache: ArtifactCache | None,
        metrics: Metrics,
        code: OwnCode | None = None,
        rules: RuleFiles | None = None,
        cores: int = 1,
    ) -> None:
        self.run, self.device, self.cache, self.metrics, self.rules = run, device, cache, metrics, rules
        self.code, self.cores = code or OwnCode(), cores
        self.current: LoadedRun | None = None
        self.stamp: Stamp | None = None  # of the run that is served, or of the one that could not be loaded
        self.problem: str | None = None
        self.wanted = self.used = NO_ARTIFACTS  # of the run that is served
        self.build: subprocess.Popen[bytes] | None = None

    def load(self) -> LoadedRun:
        """Load the run as it is on disk now, and try it once; raises whatever is wrong with it."""
        run = open_stored(self.run, self.code)
        wanted = self.cache.wanted(run) if self.cache is not None else NO_ARTIFACTS
        recommender, used, unusable = self.open_with_usable_artifacts(run, wanted.existing())
        # This worker does not build an unusable artifact again: if the new one were unusable too, it would never end.
        wanted = wanted.minus(unusable)
        self.wanted, self.used = wanted, used
        if self.cache is not None and used != wanted and self.build is None:
            try:
                self.build = self.cache.build_in_background(self.run, self.code)
            except OSError as error:  # no memory, no folder for temporary files, too many open files
                missing = wanted.minus(used)
                log_event(f"serving without the {missing}, whose build can't be started", logging.WARNING,
                          reason=str(error))  # fmt: skip
        recommender.catalogue.attributes.prepare()
        if self.rules is not None:
            self.rules.apply(recommender.catalogue)
        return LoadedRun(recommender, ItemSearch(recommender), run.fingerprint)

    def open_with_usable_artifacts(self, run: AnyRun, existing: Artifacts) -> tuple[Recommender, Artifacts, Artifacts]:
        """A recommender for the run, the artifacts that it uses, and those that are unusable."""
        problem: Exception | None = None
        for used in existing.choices():
            try:
                recommender = self.open_and_try(run, used)
                break
            except Exception as error:  # a damaged file can raise almost anything
                if used == NO_ARTIFACTS:
                    raise  # the run itself is at fault
                problem = problem or error
        unusable = existing.minus(used)
        if problem is not None:
            reason = str(problem) or type(problem).__name__
            log_event(f"serving without the {unusable}, which can't be used", logging.WARNING, reason=reason)
            if not isinstance(problem, NotInstalled | MemoryError):
                unusable.remove()  # so that the next start builds it again
        return recommender, used, unusable

    def open_and_try(self, run: AnyRun, artifacts: Artifacts) -> Recommender:
        """A recommender for the run that has recommended for a few sessions."""
        recommender = artifacts.open(run, self.device, self.cores)
        try_out(recommender)
        return recommender

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
        ranker = self.current.recommender.ranker
        log_event(
            "serving", run=str(self.run), why=why, by="onnx" if self.used.onnx else "torch",
            items=ranker.items, search=ranker.search_kind, recall=round(ranker.recall, 4),
        )  # fmt: skip

    async def watch(self) -> None:
        """Check every second whether the run was replaced, or an artifact was built."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL)
            try:
                await self.check(loop)
            except Exception as error:  # the watcher must survive whatever happens to the folder
                log_event("could not check whether the run has changed", logging.ERROR, reason=str(error))

    async def check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = await loop.run_in_executor(None, stamp, self.run)
        if now is not None and now != self.stamp:
            await asyncio.sleep(POLL / 4)
            if now != await loop.run_in_executor(None, stamp, self.run):
                return  # still being written
            self.stamp = now
            await loop.run_in_executor(None, self.stop_build)
            await loop.run_in_executor(None, self.take_over, "replaced on disk")
            if self.problem is None:
                self.metrics.count("reloads")
            return
        # Ask whether the build has ended before looking for its files, so that none of them is missed.
        ended = self.build is not None and self.build.poll() is not None
        existing = self.wanted.existing()
        if self.used != self.wanted and self.problem is None and existing != self.used:
            built = existing.minus(self.used)  # by this worker's build, or by another worker's
            await loop.run_in_executor(None, self.take_over, f"{built} finished")
        elif ended and self.build is not None:
            if self.used != self.wanted:  # the next run, or the next start, tries again
                missing = self.wanted.minus(self.used)
                reason = failure(self.build)
                log_event(f"serving without the {missing}, which could not be built", logging.WARNING, reason=reason)
            self.stop_build()

    def stop_build(self) -> None:
        """Stop the build process if it still runs, and forget it."""
        if self.build is not None:
            if self.build.poll() is None:
                self.build.terminate()
            try:
                self.build.wait(BUILD_GRACE)
            except subprocess.TimeoutExpired:
                self.build.kill()
                self.build.wait()
            self.build = None


def stamp(run: Path) -> Stamp | None:
    """Changes whenever a file of the run does, also in its permissions; None while a necessary file is missing.

    Checkpoints and hidden files are not counted: they come and go while a run is trained.
    """
    try:
        with os.scandir(run) as entries:
            states = {entry.name: entry.stat() for entry in entries if entry.name != STATE and entry.name[0] != "."}
    except OSError:
        return None
    if not {RUN, WEIGHTS, VOCABULARY} <= states.keys():
        return None
    return frozenset((name, found.st_ctime_ns, found.st_size, found.st_ino) for name, found in states.items())
