"""Logs as parts of whole sessions: one in memory, or many in files, read here or by Ray tasks.

A session's part is the hash of its id. Clicks are written in pieces, in the order of the log: a
file for each part and each few million clicks, and beside them a file of the items' ids.
"""

import tempfile
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
from posrec.data.prepare.parts import (
    ClickParts,
    InFiles,
    InMemory,
    Part,
    Workplace,
    write_pieces,
)
from posrec.data.source.files import File, size_of
from posrec.data.source.log import ClickLog
from posrec.data.source.readers.clicks import ClickStore, ItemIds, ParsedLog
from posrec.errors import NothingToRead
from posrec.progress import Progress, SilentProgress

TASK_BYTES = 256 << 20  # files are read together by one task up to this size
ITEMS = "items.arrow"
NUMBERS = "numbers.npz"


@dataclass(frozen=True)
class ReadLogs:
    """What was read: of a log, or of the training and the test log of an existing split."""

    logs: Sequence[ClickLog]
    parsed: Sequence[ParsedLog]
    clicks: Sequence[ClickParts]
    item_names: pl.Series


class PieceStore(ClickStore):
    """Writes clicks whenever there are `max_buffered`, to the `files` of each part."""

    def __init__(self, folder: Path, parts: int, max_buffered: int) -> None:
        super().__init__(ItemIds(), folder)
        self.session_type = pl.String()
        self.parts = parts
        self.max_buffered = max_buffered
        self.files: defaultdict[int, list[Path]] = defaultdict(list)
        self.count = 0
        self.buffered = 0

    def add(self, clicks: pl.DataFrame) -> None:
        end = self.count + len(clicks)
        rows = pl.int_range(self.count, end, dtype=pl.UInt64)
        super().add(clicks.with_columns(row=rows))
        self.count = end
        self.buffered += len(clicks)
        if self.buffered >= self.max_buffered:
            self.write()

    def write(self) -> None:
        clicks = self.take()
        # With a seed, since every task must put a session into the same part.
        part_of_session = pl.col("session").hash(seed=0) % self.parts
        pieces = write_pieces(clicks, part_of_session, self.folder)
        for number, path in pieces.items():
            self.files[number].append(path)
        self.buffered = 0

    def close(self) -> None:
        if self.buffered:
            self.write()
        self.items.names().alias("item").to_frame().write_ipc(self.folder / ITEMS)


@dataclass(frozen=True)
class Pieces(InFiles):
    """The clicks of one part, in the order of the log. A folder holds what was read together."""

    def load(self) -> pl.DataFrame:
        frames = []
        for folder, pieces in groupby(self.files, attrgetter("parent")):
            with np.load(folder / NUMBERS) as numbers:
                first_row = int(numbers["first_row"])
                items = numbers["items"]
            for frame in map(pl.read_ipc, pieces):
                item = pl.Series(items[frame["item"].to_numpy()])
                frames.append(frame.with_columns(pl.col("row") + first_row, item=item))
        return pl.concat(frames, how="diagonal")


def read_logs(logs: Sequence[ClickLog], workplace: Workplace) -> ReadLogs:
    items = ItemIds()
    read = [read_log(log, items, workplace) for log in logs]
    parsed = [parsed_log for parsed_log, _ in read]
    names = items.names()
    clicks = [ClickParts(workplace, len(names), parts) for _, parts in read]
    return ReadLogs(logs, parsed, clicks, names)


def read_log(
    log: ClickLog, items: ItemIds, workplace: Workplace
) -> tuple[ParsedLog, Sequence[Part]]:
    progress = workplace.progress
    parts: Sequence[Part]
    if workplace.in_memory:
        store = ClickStore(items, scratch(workplace))
        parsed = merged([part.read(progress, store) for part in log.parts])
        parts = [InMemory(store.take())]
    else:
        results: list[ReadFiles] = []
        for part in log.parts:
            results += read_into_files(part, workplace)
        parsed, parts = join(results, items)
    parsed.report(progress)
    if not parsed.clicks:
        raise NothingToRead(
            f"{log.name} holds no clicks: it is empty, or has nothing below its header"
        )
    return parsed, parts


def scratch(workplace: Workplace) -> Path:
    return Path(tempfile.mkdtemp(dir=workplace.folder))


def merged(parsed: Sequence[ParsedLog]) -> ParsedLog:
    for other in parsed[1:]:
        parsed[0].merge(other)
    return parsed[0]


def read_into_files(log: ClickLog, workplace: Workplace) -> list["ReadFiles"]:
    folder = scratch(workplace)
    read = partial(read_files, log, folder, workplace.parts, workplace.max_buffered)
    groups = file_groups(log) if workplace.executor.cpus > 1 else []
    if len(groups) > 1:
        return read_by_tasks(read, groups, workplace)
    return [read((0, log.files), progress=workplace.progress)]


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
    pieces: Mapping[int, list[Path]]  # the files of each part
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
    group: tuple[int, Sequence[File]],
    time_unit: str | None = None,
    progress: Progress | None = None,
) -> ReadFiles:
    number, files = group
    name = f"{number:05d}"
    if time_unit is not None:
        name += f"-{time_unit}"
        log = replace(log, options=replace(log.options, time_unit=time_unit))
    folder = folder / name
    folder.mkdir(exist_ok=True)  # it exists if the process of this task has died before
    store = PieceStore(folder, parts, max_buffered)
    messages = Messages()
    parsed = log.read(progress or messages, store, files)
    store.close()
    return ReadFiles(folder, dict(store.files), parsed, messages.texts)


def read_by_tasks(
    read: "partial[ReadFiles]", groups: list[list[File]], workplace: Workplace
) -> list[ReadFiles]:
    numbered = list(enumerate(groups))
    results: list[ReadFiles] = list(workplace.run(read, numbered, "Reading"))
    # The unit of times is guessed from the first of the whole log; files that begin differently
    # are read again.
    units = [result.parsed.time_unit for result in results]
    first = next((unit for unit in units if unit is not None), None)
    wrong = [group for group in numbered if units[group[0]] not in (first, None)]
    again = workplace.run(partial(read, time_unit=first), wrong, "Reading")
    for (number, _), result in zip(wrong, again, strict=True):
        results[number] = result
    # What is the same for several files is reported once, of the first.
    reported = set()
    for result in results:
        for message in result.messages:
            text = message.partition(": ")[2] or message
            if text not in reported:
                reported.add(text)
                workplace.progress.message(message)
    return results


def join(
    results: Sequence[ReadFiles], items: ItemIds
) -> tuple[ParsedLog, Sequence[Part]]:
    files: defaultdict[int, list[Path]] = defaultdict(list)
    first_row = 0
    for result in results:
        names = pl.read_ipc(result.folder / ITEMS)["item"]
        numbers = names.cast(items.dtype).to_physical().to_numpy()
        np.savez(result.folder / NUMBERS, first_row=first_row, items=numbers)
        first_row += result.parsed.clicks
        for part, paths in result.pieces.items():
            files[part] += paths
    parsed = merged([result.parsed for result in results])
    return parsed, [Pieces(tuple(paths)) for _, paths in sorted(files.items())]
