"""The run that is being served, and the one that takes its place when it is replaced on disk.

A replaced run is loaded beside the old one and tried; only then does it take over. One that is broken is told of in the
log, and the old one stays. The first start does not wait for what is made of a run once (its network as ONNX, the index
of very many items): torch and the exact search answer until it is there.
"""

import asyncio
import logging
import subprocess
from dataclasses import dataclass
from pathlib import Path

from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.errors import NotInstalled
from posrec.io import RUN, WEIGHTS
from posrec.recommend.artifacts import NOTHING, Made, RunCache, told_by
from posrec.recommend.ranker import Ranker
from posrec.run import Run, load_run
from posrec.server.item_search import CatalogueSearch
from posrec.server.log import log_event
from posrec.server.metrics import Metrics

POLL = 1.0  # seconds

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Loaded:
    ranker: Ranker
    catalogue: CatalogueSearch


class LiveRun:
    """`cache` is what is made of runs and where it is kept; without one torch computes, and the search is exact."""

    def __init__(self, run: Path, device: str, cache: RunCache | None, metrics: Metrics) -> None:
        self.run, self.device, self.cache, self.metrics = run, device, cache, metrics
        self.current: Loaded | None = None
        self.stamp: Stamp | None = None  # of the run that is served, or of the one that was refused
        self.problem: str | None = None
        self.wanted = self.made = NOTHING  # of the run that is served: what there should be, and what there is
        self.making: subprocess.Popen[bytes] | None = None

    def load(self) -> Loaded:
        """The run as it lies on disk now, tried once; raises whatever is wrong with it."""
        run = load_run(self.run)
        wanted = self.cache.wanted(run) if self.cache is not None else NOTHING
        ranker, made, unusable = self.with_what_can_be_used(run, wanted.there())
        # What can't be used is not made again by this worker: were it at fault each time, that would never end.
        wanted = wanted.beyond(unusable)
        self.wanted, self.made = wanted, made
        if self.cache is not None and made != wanted and self.making is None:
            self.making = self.cache.make_aside(self.run)
        return Loaded(ranker, CatalogueSearch(ranker.recommender))

    def with_what_can_be_used(self, run: Run, there: Made) -> tuple[Ranker, Made, Made]:
        """What ranks for a run, the files it uses, and those that can't be used."""
        problem: Exception | None = None
        for made in dict.fromkeys((there, Made(None, there.index), Made(there.onnx, None), NOTHING)):
            try:
                ranker = self.tried(run, made)
                break
            except Exception as error:  # a damaged file can raise almost anything
                if made == NOTHING:
                    raise  # it is the run itself
                problem = problem or error
        unusable = there.beyond(made)
        if problem is not None:
            reason = str(problem) or type(problem).__name__
            log_event(f"{there.without(made)} can't be used; it goes on without", logging.WARNING, reason=reason)
            if not isinstance(problem, NotInstalled | MemoryError):
                unusable.remove()  # so that the next start makes it again
        return ranker, made, unusable

    def tried(self, run: Run, made: Made) -> Ranker:
        """What ranks for a run, after it has done so once."""
        ranker = Ranker(run, self.device, made.onnx, made.index)
        if ranker.recommender.items > len(ranker.recommender.vocabulary):
            raise ValueError(f"the vocabulary holds fewer than the model's {ranker.recommender.items} items")
        first = ranker.query([ranker.recommender.vocabulary.item(1)], 1, False, None, None)
        ranker.answer(first, ranker.rank([first])[0])
        return ranker

    def begin(self) -> None:
        """The first load; a run that can't be loaded is waited for."""
        self.stamp = stamp(self.run)
        self.take_over("started")

    def take_over(self, why: str) -> None:
        try:
            self.current = self.load()
        except Exception as error:  # a damaged file can raise almost anything, and must not end the server
            self.problem = str(error) or type(error).__name__
            self.metrics.count("failed_reloads")
            kept = "the run loaded before stays" if self.current else "nothing can be recommended yet"
            log_event(f"{self.run} can't be served; {kept}", logging.ERROR, reason=self.problem)
            return
        self.problem = None
        ranker = self.current.ranker
        log_event(
            "serving", run=str(self.run), why=why, by="onnx" if ranker.onnx else "torch",
            items=ranker.recommender.items, search=ranker.found_by, recall=round(ranker.recall, 4),
        )  # fmt: skip

    async def watch(self) -> None:
        """Look every second whether the run was replaced, or more was made of it."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL)
            try:
                await self.look(loop)
            except Exception as error:  # the watcher must outlive whatever happens to the folder
                log_event("could not look after the run", logging.ERROR, reason=str(error))

    async def look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = await loop.run_in_executor(None, stamp, self.run)
        if now is not None and now != self.stamp:
            await asyncio.sleep(POLL / 4)
            if now != await loop.run_in_executor(None, stamp, self.run):
                return  # still being written
            self.stamp = now
            self.stop_making()
            await loop.run_in_executor(None, self.take_over, "replaced on disk")
            if self.problem is None:
                self.metrics.count("reloads")
            return
        ended = self.making is not None and self.making.poll() is not None  # asked before looking for the files
        if self.made != self.wanted and self.problem is None and self.wanted.there() != self.made:
            await loop.run_in_executor(None, self.take_over, "more was made of it")  # perhaps by another worker
        elif ended and self.making is not None:
            if self.made != self.wanted:  # it is tried again with the next run or start
                missing = self.wanted.without(self.made)
                reason = told_by(self.making)
                log_event(f"{missing} could not be made; it goes on without", logging.WARNING, reason=reason)
            self.stop_making()

    def stop_making(self) -> None:
        """It has ended, or nobody waits for it any more."""
        if self.making is not None:
            if self.making.poll() is None:
                self.making.terminate()
            self.making.wait()
            self.making = None


def stamp(run: Path) -> Stamp | None:
    """What tells one state of the folder from the next; None while a file is missing."""
    try:
        states = [(run / name).stat() for name in (RUN, WEIGHTS, VOCABULARY)]
    except OSError:
        return None
    return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
