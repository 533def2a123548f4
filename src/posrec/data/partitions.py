"""PartitionedClicks: the clicks of a log as partitions of whole sessions, and what recipes do with them.

A step that looks at one session at a time is mapped over the partitions. What depends on the whole log is reduced from
small results of every partition: how often an item occurs is the sum of the counts, the latest date is the latest of
the latest. Recipes (recipes.py) are written once in these words; an engine (engines.py) decides where the partitions
are kept and who works on them.

Steps that are mapped over partitions on disk are put off until a result is asked for, so that a partition is read and
written once for several steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data.engines import DiskEngine, Engine, MemoryEngine
from posrec.data.partition import Kept, Partition, on_clicks

Change = Callable[[Partition], Partition]
ItemCounts = npt.NDArray[np.int64]
AT_ONCE = 2**20  # codes that are counted at once, or as many as there are items: numpy copies them


@dataclass(frozen=True)
class Counts:
    """What a partition or a whole log holds; `items [items]` counts the clicks on each."""

    clicks: int
    sessions: int
    items: ItemCounts

    @classmethod
    def of(cls, clicks: pl.DataFrame, items: int) -> "Counts":
        codes, counts, at_once = clicks["item"].to_numpy(), np.zeros(items, dtype=np.int64), max(AT_ONCE, items)
        for start in range(0, len(codes), at_once):
            counts += np.bincount(codes[start : start + at_once], minlength=items)
        return cls(len(clicks), clicks["session"].n_unique(), counts)


class PartitionedClicks:
    """Clicks of a log whose items are 0 ... items - 1. The partitions are in `kept`; `changes` are yet to be made.

    A change makes a new object and uses up the old one, whose files are removed.
    """

    def __init__(self, engine: Engine, items: int, kept: Sequence[Kept], changes: Sequence[Any] = ()) -> None:
        self.engine, self.items = engine, items
        self.kept, self.changes = list(kept), list(changes)
        self.sizes: list[tuple[int, int]] | None = None  # (clicks, sessions) of each partition
        self.item_counts: ItemCounts | None = None

    def map(self, step: Callable[..., pl.DataFrame], *arguments: Any) -> "PartitionedClicks":
        """Apply a step of steps.py to the clicks of every partition."""
        return self.apply(on_clicks, step, *arguments)

    def map_each(self, step: Callable[..., pl.DataFrame], arguments: Sequence[Any]) -> "PartitionedClicks":
        """Apply a step with an argument of its own for each partition."""
        return self.then([partial(_on_clicks_with, step, argument) for argument in arguments])

    def apply(self, function: Callable[..., Partition], *arguments: Any) -> "PartitionedClicks":
        """Apply a function of partition.py to every partition."""
        return self.then([partial(_call, function, arguments)] * len(self.kept))

    def then(self, change: Sequence[Change]) -> "PartitionedClicks":
        """Make a change, given for each partition."""
        if isinstance(self.engine, MemoryEngine):
            before = [kept.load() for kept in self.kept]
            changed = [one(partition) for one, partition in zip(change, before, strict=True)]
            after = PartitionedClicks(self.engine, self.items, changed)
            # A step that drops nothing returns the frame that it was given.
            unchanged = all(new.clicks is old.clicks for new, old in zip(changed, before, strict=True))
            return after.with_counts_of(self) if unchanged else after
        return PartitionedClicks(self.engine, self.items, self.kept, [*self.changes, change])

    def count(self, work: str = "Filtering") -> Counts:
        """Make the changes that were put off, and count."""
        if self.sizes is None or self.item_counts is None:
            if isinstance(self.engine, MemoryEngine):
                counts = [Counts.of(kept.load().clicks, self.items) for kept in self.kept]
            else:
                (kept,), (counts,) = self._pass(_keep_whole, 1, work)
                self.kept, self.changes = kept, []
            self.set_counts(counts)
        assert self.sizes is not None
        assert self.item_counts is not None
        return Counts(sum(size[0] for size in self.sizes), sum(size[1] for size in self.sizes), self.item_counts)

    def split(
        self, function: Callable[..., tuple[Partition, ...]], *arguments: Any, work: str = "Splitting"
    ) -> "tuple[PartitionedClicks, PartitionedClicks]":
        """Split every partition into two."""
        if isinstance(self.engine, MemoryEngine):
            pairs = [function(kept.load(), *arguments) for kept in self.kept]
            train, test = (PartitionedClicks(self.engine, self.items, list(part)) for part in zip(*pairs, strict=True))
            return train, test
        kept, counts = self._pass(partial(_call, function, arguments), 2, work)
        train, test = (PartitionedClicks(self.engine, self.items, part) for part in kept)
        for part, counted in zip((train, test), counts, strict=True):
            part.set_counts(counted)
        return train, test

    def collect(self, function: Callable[[Partition], Any], work: str = "Looking") -> list[Any]:
        """A small result of every partition, in order."""
        self._settle()
        return self.engine.run(partial(_look, function), self.kept, work)

    def look(self, number: int, function: Callable[[Partition], Any]) -> Any:
        """A small result of one partition."""
        self._settle()
        return function(self.kept[number].load())

    def partitions(self, work: str) -> Iterator[Partition]:
        """Every partition in order, in this process."""
        self._settle()
        for number, kept in enumerate(self.kept):
            if isinstance(self.engine, DiskEngine):
                self.engine.progress.update(work, number, len(self.kept))
            yield kept.load()

    def _settle(self) -> None:
        if self.changes:
            self.count()

    def set_counts(self, counts: Sequence[Counts]) -> None:
        self.sizes = [(one.clicks, one.sessions) for one in counts]
        self.item_counts = np.sum([one.items for one in counts], axis=0)

    def with_counts_of(self, other: "PartitionedClicks") -> "PartitionedClicks":
        """Take over the counts of another object whose partitions hold as many sessions and as many clicks of each
        item."""
        self.sizes, self.item_counts = other.sizes, other.item_counts
        return self

    def _pass(self, end: Callable[[Partition], Any], outputs: int, work: str) -> tuple[list[Any], list[Any]]:
        """Read every partition, change it, write what `end` makes of it, and count that."""
        engine = self.engine
        assert isinstance(engine, DiskEngine)
        changes = list(zip(*self.changes, strict=True)) or [()] * len(self.kept)
        folder = engine.folder / f"pass-{next(engine.passes):03d}"
        folder.mkdir()
        inputs = list(zip(self.kept, changes, range(len(self.kept)), strict=True))
        results = engine.run(partial(_run_pass, end, folder, self.items), inputs, work)
        for kept in self.kept:
            kept.remove()
        parts = [[result[output] for result in results] for output in range(outputs)]
        return [[kept for kept, _ in part] for part in parts], [[counts for _, counts in part] for part in parts]


def _run_pass(end: Any, folder: Any, items: int, given: Any) -> list[tuple[Kept, Counts]]:
    """The task of a pass: a partition, changed, becomes one or two others."""
    kept, changes, number = given
    partition = kept.load()
    for change in changes:
        partition = change(partition)
    made = end(partition)
    return [
        (one.save(folder / f"{number:04d}-{output}"), Counts.of(one.clicks, items)) for output, one in enumerate(made)
    ]


def _keep_whole(partition: Partition) -> tuple[Partition]:
    return (partition,)


def _look(function: Callable[[Partition], Any], kept: Kept) -> Any:
    return function(kept.load())


def _call(function: Callable[..., Any], arguments: Sequence[Any], partition: Partition) -> Any:
    return function(partition, *arguments)


def _on_clicks_with(step: Callable[..., pl.DataFrame], argument: Any, partition: Partition) -> Partition:
    return on_clicks(partition, step, argument)
