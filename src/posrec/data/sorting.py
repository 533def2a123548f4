"""Sessions in order of time, over all partitions of a log.

Partitions hold sessions by the hash of their id. To sort them, every partition is sorted by itself into a run, the runs
are cut at the same moments, and the pieces between two moments are merged into a new partition. Then the partitions
follow each other in time, and no more than one of them is in memory.

Sessions with the same key stay in the order in which they appear in the log, which `first_row` says.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data import steps
from posrec.data.engines import MemoryEngine
from posrec.data.partition import Partition, StoredPartition
from posrec.data.partitions import Counts, PartitionedClicks

SAMPLES = 1000  # sessions of a run that are looked at to choose the moments
Moments = npt.NDArray[np.int64]  # [moments, 2] key and first row, in order


def sort_sessions(clicks: PartitionedClicks, by_date: bool = False) -> PartitionedClicks:
    """Sort sessions by their date, or by their first click, and renumber them in each partition, which then has what
    they were sorted by, `key`."""
    engine = clicks.engine
    if isinstance(engine, MemoryEngine):
        return clicks.apply(sort_whole, by_date).with_counts_of(clicks)
    runs = clicks.apply(as_run, by_date)
    runs.count("Sorting")
    samples = engine.run(sample_run, runs.kept, "Sorting")
    moments = choose_moments(np.concatenate(samples), engine.partitions)
    cuts = engine.run(partial(cut_run, moments), runs.kept, "Sorting")
    folder = engine.folder / f"pass-{next(engine.passes):03d}"
    folder.mkdir()
    ranges = [(number, [(cut[number], cut[number + 1]) for cut in cuts]) for number in range(len(moments) + 1)]
    merged = engine.run(partial(merge_range, runs.kept, folder, clicks.items), ranges, "Merging")
    for run in runs.kept:
        run.remove()
    ordered = PartitionedClicks(engine, clicks.items, [kept for kept, _ in merged])
    ordered.set_counts([counts for _, counts in merged])
    return ordered


def sort_whole(partition: Partition, by_date: bool) -> Partition:
    """Sort the only partition."""
    if by_date:
        clicks, keys = steps.sort_by_date(partition.clicks, partition.sessions["date"])
    else:
        clicks, keys = steps.sort_by_first_click(partition.clicks)
    return Partition(clicks, {"key": keys})


def as_run(partition: Partition, by_date: bool) -> Partition:
    """Sort a partition, and keep what its sessions were sorted by."""
    table = steps.session_table(partition.clicks)
    numbers, lengths = table["session"].to_numpy(), table["len"].to_numpy()
    keys = partition.sessions["date"][numbers] if by_date else table["time"].to_numpy()
    order = np.argsort(keys, kind="stable")
    sessions = {"key": keys, "first_row": partition.sessions["first_row"][numbers], "length": lengths}
    return Partition(
        steps.order_sessions(partition.clicks, order, lengths), {name: array[order] for name, array in sessions.items()}
    )


def sample_run(run: StoredPartition) -> npt.NDArray[np.int64]:
    """[samples, 3] the key and the first row of some sessions, and the clicks from the sample before up to each."""
    sessions = run.session_arrays()
    clicks = np.cumsum(sessions["length"], dtype=np.int64)
    chosen = np.unique(np.linspace(0, len(clicks) - 1, min(SAMPLES, len(clicks))).astype(np.int64))
    keys, rows = sessions["key"][chosen], sessions["first_row"][chosen].astype(np.int64)
    return np.stack([keys, rows, np.diff(clicks[chosen], prepend=0)], axis=1)


def choose_moments(samples: npt.NDArray[np.int64], ranges: int) -> Moments:
    """The moments that cut the samples into ranges with about equally many clicks."""
    samples = samples[np.lexsort((samples[:, 1], samples[:, 0]))]
    before = np.cumsum(samples[:, 2])
    wanted = np.arange(1, ranges) * (int(before[-1]) if len(before) else 0) // ranges
    return np.unique(samples[np.searchsorted(before, wanted)][:, :2], axis=0) if len(samples) else samples[:, :2]


def cut_run(moments: Moments, run: StoredPartition) -> list[tuple[int, int]]:
    """(session, click) at which each range of a run begins, and the end of the run."""
    sessions = run.session_arrays()
    keys, rows = sessions["key"], sessions["first_row"]
    clicks = np.concatenate([[0], np.cumsum(sessions["length"], dtype=np.int64)])
    first = [0]
    for key, row in moments:
        start, end = np.searchsorted(keys, key, side="left"), np.searchsorted(keys, key, side="right")
        first.append(int(start + np.searchsorted(rows[start:end], row, side="left")))
    first.append(len(keys))
    return [(session, int(clicks[session])) for session in first]


def merge_range(runs: Sequence[Any], folder: Path, items: int, given: Any) -> tuple[Any, Counts]:
    """The task of a range: its pieces of all runs become one sorted partition."""
    number, cuts = given
    pieces = [
        run.load_slice((start[1], end[1]), (start[0], end[0])) for run, (start, end) in zip(runs, cuts, strict=True)
    ]
    sessions = {name: np.concatenate([piece.sessions[name] for piece in pieces]) for name in pieces[0].sessions}
    clicks = pl.concat([piece.clicks for piece in pieces])
    pieces.clear()
    order = np.lexsort((sessions["first_row"], sessions["key"]))  # stable
    merged = Partition(steps.order_sessions(clicks, order, sessions["length"]), {"key": sessions["key"][order]})
    return merged.save(folder / f"{number:04d}"), Counts.of(merged.clicks, items)
