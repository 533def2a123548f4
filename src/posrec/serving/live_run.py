"""The run that is being served, and the one that takes its place when it is replaced on disk.

A replaced run is loaded beside the old one and tried; only then does it take over. One that is broken is told of in the
log, and the old one stays. The first start does not wait for the export to ONNX: torch answers until it is there.
"""

import asyncio
import logging
import subprocess
from dataclasses import dataclass
from pathlib import Path

from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.runs import CONFIG, load_run
from posrec.serving.catalogue_search import CatalogueSearch
from posrec.serving.metrics import Metrics
from posrec.serving.onnx_cache import cached, export_aside, told_by
from posrec.serving.ranker import Ranker
from posrec.serving.server_log import tell
from posrec.tensors import WEIGHTS

POLL = 1.0  # seconds

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Loaded:
    ranker: Ranker
    catalogue: CatalogueSearch


class LiveRun:
    """`cache` is where exported models are kept; without one torch computes."""

    def __init__(self, run: Path, device: str, cache: Path | None, metrics: Metrics) -> None:
        self.run, self.device, self.cache, self.metrics = run, device, cache, metrics
        self.current: Loaded | None = None
        self.stamp: Stamp | None = None  # of the run that is served, or of the one that was refused
        self.problem: str | None = None
        self.exporting: subprocess.Popen[bytes] | None = None

    def load(self) -> Loaded:
        """The run as it lies on disk now, tried once; raises whatever is wrong with it."""
        run = load_run(self.run)
        onnx = None
        if self.cache is not None and hasattr(run.model, "session_vectors"):
            onnx = cached(self.run, self.cache)
            if onnx is None and self.exporting is None:
                self.exporting = export_aside(self.run, self.cache)
        ranker = Ranker(run, self.device, onnx)
        if ranker.recommender.items > len(ranker.recommender.vocabulary):
            raise ValueError(f"the vocabulary holds fewer than the model's {ranker.recommender.items} items")
        first = ranker.query([ranker.recommender.vocabulary.item(1)], 1, False, None, None)
        ranker.answer(first, ranker.rank([first])[0])
        return Loaded(ranker, CatalogueSearch(ranker.recommender))

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
            tell(f"{self.run} can't be served; {kept}", logging.ERROR, reason=self.problem)
            return
        self.problem = None
        by = "onnx" if self.current.ranker.onnx else "torch"
        tell("serving", run=str(self.run), why=why, by=by, items=self.current.ranker.recommender.items)

    async def watch(self) -> None:
        """Look every second whether the run was replaced, or its export is there."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL)
            try:
                await self.look(loop)
            except Exception as error:  # the watcher must outlive whatever happens to the folder
                tell("could not look after the run", logging.ERROR, reason=str(error))

    async def look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = await loop.run_in_executor(None, stamp, self.run)
        if now is not None and now != self.stamp:
            await asyncio.sleep(POLL / 4)
            if now != await loop.run_in_executor(None, stamp, self.run):
                return  # still being written
            self.stamp = now
            self.end_export()
            await loop.run_in_executor(None, self.take_over, "replaced on disk")
            if self.problem is None:
                self.metrics.count("reloads")
            return
        ended = self.exporting is not None and self.exporting.poll() is not None  # asked before looking for the file
        if self.waits_for_onnx() and await loop.run_in_executor(None, self.is_exported):
            self.end_export()
            await loop.run_in_executor(None, self.take_over, "exported")
        elif ended and self.exporting is not None:
            reason = told_by(self.exporting)
            tell("the export to ONNX failed; torch goes on computing", logging.WARNING, reason=reason)
            self.end_export()  # it is tried again with the next run or start

    def waits_for_onnx(self) -> bool:
        """Whether torch stands in; another worker may be the one that exports."""
        return (
            self.cache is not None
            and self.problem is None
            and self.current is not None
            and self.current.ranker.onnx is None
            and self.current.ranker.search is not None
        )

    def is_exported(self) -> bool:
        return self.cache is not None and cached(self.run, self.cache) is not None

    def end_export(self) -> None:
        """What was exported is of a run that is not served any more, or it is done."""
        if self.exporting is not None:
            if self.exporting.poll() is None:
                self.exporting.terminate()
            self.exporting.wait()
            self.exporting = None


def stamp(run: Path) -> Stamp | None:
    """What tells one state of the folder from the next; None while a file is missing."""
    try:
        states = [(run / name).stat() for name in (CONFIG, WEIGHTS, VOCABULARY)]
    except OSError:
        return None
    return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
