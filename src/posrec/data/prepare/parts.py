"""ClickParts: the clicks of a log as parts of whole sessions, and what recipes do with them.

A part is a click frame. A step (steps.py) looks at one session at a time, and is mapped over the
parts. What depends on the whole log is reduced from small results of every part. A log that fits
into memory is one part; a larger one has many, in files.
"""

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from posrec.data.prepare import steps
from posrec.data.prepare.steps import Numbers
from posrec.io.executor import Executor, ThisProcess
from posrec.progress import Progress, SilentProgress

SAMPLED_SESSIONS = 1000  # of a part, from which the moments between parts are chosen

Step = Callable[..., pl.DataFrame]
# A part's clicks and its number -> one frame or several.
Change = Callable[[pl.DataFrame, int], Sequence[pl.DataFrame]]
Measure = Callable[[pl.DataFrame, pl.DataFrame], Any]


@dataclass(frozen=True)
class InMemory:
    frame: pl.DataFrame

    def load(self) -> pl.DataFrame:
        return self.frame

    def remove(self) -> None:
        """The last reference to the frame frees its memory."""


@dataclass(frozen=True)
class InFiles:
    """The clicks of several files; their sessions are numbered again."""

    files: tuple[Path, ...]

    def load(self) -> pl.DataFrame:
        frames = []
        sessions = 0
        for path in self.files:
            number = pl.col("session").rle_id() + pl.lit(sessions, dtype=pl.UInt32)
            frame = pl.read_ipc(path).with_columns(number)
            if len(frame):
                sessions = int(frame["session"][-1]) + 1
            frames.append(frame)
        return pl.concat(frames)

    def remove(self) -> None:
        for path in self.files:
            path.unlink()


Part = InMemory | InFiles  # whole sessions of a log, wherever they are


def write_frame(frame: pl.DataFrame, folder: Path) -> Path:
    """Write a new file: a task that dies and is run again writes another one."""
    path = folder / f"{secrets.token_hex(8)}.arrow"
    frame.write_ipc(path, compat_level=pl.CompatLevel.newest())
    return path


def write_pieces(
    frame: pl.DataFrame, keys: pl.Series | pl.Expr, folder: Path
) -> dict[int, Path]:
    """Write the rows of each key, `keys [rows]`, to a file of their own."""
    pieces = frame.with_columns(key=keys).partition_by(
        "key", as_dict=True, include_key=False
    )
    return {key: write_frame(piece, folder) for (key,), piece in pieces.items()}


@dataclass(frozen=True)
class Workplace:
    """Who works on the parts, how many there are, and their folder. One part stays in memory."""

    folder: Path
    parts: int = 1
    max_buffered: int = 0  # clicks in memory while a log is read into files
    executor: Executor = field(default_factory=ThisProcess)
    progress: Progress = field(default_factory=SilentProgress)

    @property
    def in_memory(self) -> bool:
        return self.parts == 1

    def run(
        self, function: Callable[[Any], Any], inputs: Sequence[Any], work: str
    ) -> Iterator[Any]:
        """`function(input)` of every input, in order; `work` names the progress bar."""
        progress = None if self.in_memory else self.progress
        results = self.executor.run(
            function, inputs, work=work, in_order=True, progress=progress
        )
        return (result for _, result in results)


class ClickParts:
    """Clicks of a log whose items are 0 ... items - 1.

    A change makes a new object and removes the files of the old one. It counts the clicks and
    sessions of each part, and the clicks on each item.
    """

    def __init__(self, workplace: Workplace, items: int, parts: Sequence[Part]) -> None:
        self.workplace = workplace
        self.items = items
        self.parts = list(parts)
        self.clicks = np.zeros(len(self.parts), dtype=np.int64)
        self.sessions = np.zeros_like(self.clicks)
        self.item_clicks = np.zeros(items, dtype=np.int64)
        self.measured: list[Any] = [None] * len(self.parts)

    def map(
        self, *changes: Step, work: str = "Filtering", measure: Measure | None = None
    ) -> "ClickParts":
        """Apply steps to every part; `measured` is what `measure(before, after)` returns."""

        def change(clicks: pl.DataFrame, _: int) -> list[pl.DataFrame]:
            for step in changes:
                clicks = step(clicks)
            return [clicks]

        return self.change(change, 1, work, measure)[0]

    def split(self, step: Callable[..., Any]) -> "list[ClickParts]":
        return self.change(lambda clicks, _: step(clicks), 2, "Splitting")

    def change(
        self, change: Change, outputs: int, work: str, measure: Measure | None = None
    ) -> "list[ClickParts]":
        """Every part becomes one in each of the outputs."""
        folder = None if self.workplace.in_memory else self.workplace.folder
        task = partial(change_part, change, measure, self.items, folder)
        results = self.workplace.run(task, list(enumerate(self.parts)), work)
        changed = [
            ClickParts(self.workplace, self.items, self.parts) for _ in range(outputs)
        ]
        for number, (new_parts, measured) in enumerate(results):
            self.parts[number].remove()
            for output, new in zip(changed, new_parts, strict=True):
                part, sessions, item_clicks = new
                output.parts[number] = part
                output.clicks[number] = item_clicks.sum()
                output.sessions[number] = sessions
                output.item_clicks += item_clicks
                output.measured[number] = measured
        self.parts.clear()  # frees their memory, whoever still holds this object
        return changed

    def collect(
        self, function: Callable[[pl.DataFrame], Any], work: str = "Counting"
    ) -> list[Any]:
        def task(part: Part) -> Any:
            return function(part.load())

        return list(self.workplace.run(task, self.parts, work))

    def frames(self, work: str) -> Iterator[pl.DataFrame]:
        for number, part in enumerate(self.parts):
            self.workplace.progress.update(work, number, len(self.parts))
            yield part.load()

    def sort_sessions(self) -> "ClickParts":
        clicks = self if self.workplace.in_memory else self.cut_by_time()
        return clicks.map(steps.sort_sessions, work="Sorting")

    def cut_by_time(self) -> "ClickParts":
        """Parts that follow each other in time.

        Parts hold sessions by the hash of their id. Each is cut at the same moments, and the pieces
        between two moments become a new part.
        """
        samples = self.collect(sample_sessions, "Sampling")
        moments = choose_moments(np.concatenate(samples), self.workplace.parts)
        cut = partial(cut_part, moments, self.workplace.folder)
        files: defaultdict[int, list[Path]] = defaultdict(list)
        pieces = self.workplace.run(cut, self.parts, "Cutting")
        for part, pieces_of_part in zip(self.parts, pieces, strict=True):
            part.remove()
            for range_number, path in pieces_of_part.items():
                files[range_number].append(path)
        parts = [InFiles(tuple(paths)) for _, paths in sorted(files.items())]
        return ClickParts(self.workplace, self.items, parts)


def change_part(
    change: Change,
    measure: Measure | None,
    items: int,
    folder: Path | None,
    numbered: tuple[int, Part],
) -> tuple[list[tuple[Part, int, Numbers]], Any]:
    """The task of a change: new parts, each with its sessions and clicks on each item; and what
    was measured."""
    number, part = numbered
    clicks = part.load()
    frames = change(clicks, number)
    measured = None if measure is None else measure(clicks, *frames)
    del clicks
    results: list[tuple[Part, int, Numbers]] = []
    for frame in frames:
        new: Part = InMemory(frame)
        if folder is not None:
            new = InFiles((write_frame(frame, folder),))
        item_clicks = np.bincount(frame["item"].to_numpy(), minlength=items)
        begins, _ = steps.session_rows(frame)
        results.append((new, len(begins), item_clicks))
    return results, measured


def sample_sessions(clicks: pl.DataFrame) -> Numbers:
    """[samples, 2] the keys of some sessions, in order, and the clicks up to each."""
    keys, _, lengths = steps.session_keys(clicks)
    order = np.argsort(keys)
    before = np.cumsum(lengths[order], dtype=np.int64)
    sampled = min(SAMPLED_SESSIONS, len(order))
    chosen = np.unique(np.linspace(0, len(order) - 1, sampled).astype(np.int64))
    return np.stack([keys[order[chosen]], np.diff(before[chosen], prepend=0)], axis=1)


def choose_moments(samples: Numbers, ranges: int) -> Numbers:
    """Dates or times of first clicks that cut the samples into ranges of about equal clicks."""
    keys, clicks = samples[np.argsort(samples[:, 0])].T
    before = np.cumsum(clicks)
    limits = np.arange(1, ranges) * before[-1] // ranges
    moments: Numbers = np.unique(keys[np.searchsorted(before, limits)])
    return moments


def cut_part(moments: Numbers, folder: Path, part: Part) -> dict[int, Path]:
    """The files of a part's sessions from each moment on, up to the next."""
    clicks = part.load()
    keys, _, lengths = steps.session_keys(clicks)
    ranges = np.searchsorted(moments, keys, side="right").astype(np.uint32)
    range_of_click = pl.Series(np.repeat(ranges, lengths))
    return write_pieces(clicks, range_of_click, folder)
