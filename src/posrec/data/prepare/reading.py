"""A log as parts of whole sessions: one in memory, or many in files, read here or by tasks of a
cluster.

A session's part is the hash of its id. Clicks are written in pieces, in the order of the log: a
file for each part and each few million clicks. What the items' numbers stand for is in a file
beside them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import polars as pl

from posrec.data.arrays import WITHOUT_TIMES
from posrec.data.prepare.parts import InFiles, InMemory, Part, Workplace, write_pieces
from posrec.data.source.files import File, size_of
from posrec.data.source.log import ClickLog
from posrec.data.source.readers.clicks import ClickStore, ItemIds, ParsedLog
from posrec.errors import InputError
from posrec.progress import Progress, SilentProgress

HASH_SEED = 0  # every task must put a session into the same part
TASK_BYTES = 256 << 20  # files are read together by one task up to this size
ITEMS = "items.arrow"
NUMBERS = "numbers.npz"


@dataclass(frozen=True)
class ReadLog:
    """A log that was read: what was found, and its clicks by part."""

    parsed: ParsedLog
    parts: Sequence[Part]


class PieceStore(ClickStore):
    """Writes clicks whenever there are `max_buffered`; `files` are those of each part."""

    def __init__(self, folder: Path, parts: int, max_buffered: int) -> None:
        super().__init__(ItemIds(), folder)
        self.session_type = pl.String()
        self.parts = parts
        self.max_buffered = max_buffered
        self.files: defaultdict[int, list[Path]] = defaultdict(list)
        self.count = self.buffered = self.written = 0

    def add(self, clicks: pl.DataFrame) -> None:
        super().add(
            clicks.with_columns(
                row=pl.int_range(self.count, self.count + len(clicks), dtype=pl.UInt64)
            )
        )
        self.count += len(clicks)
        self.buffered += len(clicks)
        if self.buffered >= self.max_buffered:
            self.write()

    def write(self) -> None:
        clicks = self.take()
        places = clicks.select(
            (pl.col("session").hash(HASH_SEED) % self.parts).cast(pl.UInt32)
        ).to_series()
        for part, path in write_pieces(
            clicks, places, self.folder, f"{self.written:05d}"
        ).items():
            self.files[part].append(path)
        self.written = self.written + 1
        self.buffered = 0

    def close(self) -> None:
        """Write what is left, and the ids of the items."""
        if self.buffered:
            self.write()
        self.items.names().alias("item").to_frame().write_ipc(self.folder / ITEMS)


@dataclass(frozen=True)
class Pieces(InFiles):
    """The clicks of one part, in the order of the log.

    A folder holds what was read together; with it, the numbers of its first row and its items.
    """

    def load(self) -> pl.DataFrame:
        frames = []
        for folder, pieces in groupby(self.files, attrgetter("parent")):
            with np.load(folder / NUMBERS) as known:
                first_row = int(known["first_row"])
                items = known["items"]
            for frame in map(pl.read_ipc, pieces):
                item = pl.Series(items[frame["item"].to_numpy()])
                frames.append(frame.with_columns(pl.col("row") + first_row, item=item))
        return pl.concat(frames)


def read_log(
    log: ClickLog, items: ItemIds, place: Workplace, progress: Progress
) -> ReadLog:
    """Read a log into the parts of `place`, and report on it."""
    folder = place.new_folder()
    if place.in_memory:
        store = ClickStore(items, folder)
        result = ReadLog(log.read(progress, store), [InMemory(store.take())])
    else:
        read = partial(read_files, log, folder, place.parts, place.max_buffered)
        groups = file_groups(log) if place.executor.cpus > 1 else []
        if len(groups) > 1:
            result = join(
                read_by_tasks(read, groups, place, log.options.time_unit, progress),
                items,
            )
        else:
            result = join([read((0, log.files), progress=progress)], items)
    result.parsed.report(progress)
    if not result.parsed.clicks:
        raise InputError(
            f"{log.name} holds no clicks: it is empty, or has nothing below its header"
        )
    return result


def file_groups(log: ClickLog) -> list[list[File]]:
    """The files of a log by task; none if sessions are numbered through all files."""
    if log.format in WITHOUT_TIMES or log.table is not None:
        return []
    groups: list[list[File]] = []
    size = TASK_BYTES
    for path in log.files:
        if size + size_of(path) > TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += size_of(path)
    return groups


@dataclass(frozen=True)
class ReadFiles:
    folder: Path
    pieces: Mapping[int, list[Path]]
    parsed: ParsedLog
    messages: Sequence[str]


class Messages(SilentProgress):
    """Keeps messages, which are printed later in the order of the files."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def read_files(
    log: ClickLog,
    folder: Path,
    parts: int,
    max_buffered: int,
    given: tuple[int, Sequence[File]],
    unit: str | None = None,
    progress: Progress | None = None,
) -> ReadFiles:
    """Read some files of a log, here or as a task."""
    number, files = given
    options = log.options if unit is None else replace(log.options, time_unit=unit)
    messages = Messages()
    own = folder / f"{number:05d}{f'-{unit}' if unit else ''}"
    own.mkdir(exist_ok=True)  # it exists if the process of this task has died before
    store = PieceStore(own, parts, max_buffered)
    parsed = replace(log, options=options).read(progress or messages, store, files)
    store.close()
    return ReadFiles(own, dict(store.files), parsed, messages.texts)


def read_by_tasks(
    read: "partial[ReadFiles]",
    groups: list[list[File]],
    place: Workplace,
    unit: str | None,
    progress: Progress,
) -> list[ReadFiles]:
    """Read each group of files in a task of its own; `unit` is that of --time-unit."""
    results: list[ReadFiles] = place.run_all(read, list(enumerate(groups)), "Reading")
    first = next(
        (
            result.parsed.time_unit
            for result in results
            if result.parsed.time_unit is not None
        ),
        None,
    )
    if unit is None and first is not None:
        # The unit of numbers is guessed from the first of the whole log; a file that begins
        # differently is read again.
        wrong = [
            number
            for number, result in enumerate(results)
            if result.parsed.time_unit not in (first, None)
        ]
        again = place.run_all(
            partial(read, unit=first),
            [(number, groups[number]) for number in wrong],
            "Reading",
        )
        for number, result in zip(wrong, again, strict=True):
            results[number] = result
    messages = {
        text.partition(": ")[2] or text: text
        for result in reversed(results)
        for text in result.messages[::-1]
    }
    for message in reversed(
        messages.values()
    ):  # what is the same for several files is said of the first
        progress.message(message)
    return results


def join(read: Sequence[ReadFiles], items: ItemIds) -> ReadLog:
    """One log of what was read of its files."""
    parts: defaultdict[int, list[Path]] = defaultdict(list)
    parsed = read[0].parsed
    first_row = 0
    for files in read:
        numbers = (
            pl.read_ipc(files.folder / ITEMS)["item"]
            .cast(items.dtype)
            .to_physical()
            .to_numpy()
        )
        np.savez(files.folder / NUMBERS, first_row=first_row, items=numbers)
        first_row += files.parsed.clicks
        for part, paths in files.pieces.items():
            parts[part] += paths
        if files is not read[0]:
            parsed.merge(files.parsed)
    return ReadLog(parsed, [Pieces(tuple(parts[part])) for part in sorted(parts)])
