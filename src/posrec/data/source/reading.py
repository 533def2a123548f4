"""A log as parts of whole sessions: one in memory, or many in files, read by this process or by the tasks of a cluster.

A session's part is the hash of its id. Clicks are written in pieces, a file for each part and each few million clicks
that were read, in the order of the log. Items are numbers already: what they stand for is in a file beside the pieces.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data.arrays import WITHOUT_TIMES
from posrec.data.prepare.parts import InMemory, Part, Workplace, write_pieces
from posrec.data.source.files import File
from posrec.data.source.log import Log
from posrec.data.source.readers.bad_lines import BadLines
from posrec.data.source.readers.clicks import ClickStore, ParsedLog
from posrec.errors import InputError
from posrec.progress import Progress, SilentProgress

HASH_SEED = 0  # every task must put a session into the same part
TASK_BYTES = 256 << 20  # files are read together by one task up to this size
ITEMS, NUMBERS, BAD_LINES = "items.arrow", "numbers.npy", "bad-lines.jsonl"
Codes = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class ReadLog:
    """A log that was read: what was found, its clicks by part, and the ids of its items by number."""

    parsed: ParsedLog
    parts: list[Part]
    item_names: pl.Series


class PieceStore(ClickStore):
    """Writes clicks to `folder`, whenever there are `max_buffered` of them; `files` are those of each part."""

    def __init__(self, folder: Path, parts: int, max_buffered: int) -> None:
        super().__init__()
        self.session_type = pl.String()
        self.folder, self.parts, self.max_buffered = folder, parts, max_buffered
        self.files: defaultdict[int, list[Path]] = defaultdict(list)
        self.buffered = self.written = 0
        self.any_item: pl.Series | None = None  # polars forgets categories with the last series that has them

    def add(self, clicks: pl.DataFrame) -> None:
        if self.any_item is None:
            self.any_item = clicks["item"].head(1)
        row = pl.int_range(self.count, self.count + len(clicks), dtype=pl.UInt64)
        super().add(clicks.with_columns(pl.col("item").to_physical(), row=row))
        self.buffered += len(clicks)
        if self.buffered >= self.max_buffered:
            self.write()

    def write(self) -> None:
        clicks = self.take()
        places = clicks.select((pl.col("session").hash(HASH_SEED) % self.parts).cast(pl.UInt32)).to_series()
        for part, path in write_pieces(clicks, places, self.folder, f"{self.written:05d}").items():
            self.files[part].append(path)
        self.written, self.buffered = self.written + 1, 0

    def close(self) -> None:
        """Write what is left, and the ids of the items."""
        if self.buffered:
            self.write()
        pl.DataFrame({"item": self.item_names()}, schema={"item": pl.String}).write_ipc(self.folder / ITEMS)


@dataclass(frozen=True)
class Piece:
    """A file of clicks, from files of the log that begin with its row `first_row`."""

    path: Path
    first_row: int
    numbers: Path | None  # [items of these files] their numbers in the whole log; None if they are the same


@dataclass(frozen=True)
class Pieces:
    """The clicks of one part, in the order of the log."""

    pieces: Sequence[Piece]

    def load(self) -> pl.DataFrame:
        frames = []
        for path, pieces in groupby(self.pieces, attrgetter("numbers")):
            numbers = None if path is None else np.load(path)
            for piece in pieces:
                frame = pl.read_ipc(piece.path).with_columns(pl.col("row") + piece.first_row)
                if numbers is not None:
                    frame = frame.with_columns(item=pl.Series(numbers[frame["item"].to_numpy()]))
                frames.append(frame)
        return pl.concat(frames)

    def remove(self) -> None:
        for piece in self.pieces:
            piece.path.unlink()


def read_log(log: Log, place: Workplace, progress: Progress) -> ReadLog:
    """Read a log into the parts of `place`, and report on it."""
    folder = place.new_folder()
    if folder is None:
        result = read_into_memory(log, progress)
    else:
        read = partial(read_files, log, folder, place.parts, place.max_buffered)
        groups = file_groups(log) if place.executor.cpus > 1 else []
        if len(groups) > 1:
            result = join(read_by_tasks(read, groups, place, log.options.time_unit, progress))
        else:
            result = join([read((0, log.files), progress=progress)])
    result.parsed.report(progress)
    if not result.parsed.clicks:
        raise InputError(f"{log.name} holds no clicks: it is empty, or has nothing below its header")
    return result


def read_into_memory(log: Log, progress: Progress) -> ReadLog:
    store = ClickStore()
    parsed = log.read(progress, store)
    clicks = store.take()
    names = store.item_names()  # before the numbers replace the ids: polars forgets categories that no series has
    in_memory = InMemory(clicks.with_columns(pl.col("item").to_physical()).rechunk())  # a copy that steps don't repeat
    return ReadLog(parsed, [in_memory], names)


def file_groups(log: Log) -> list[list[File]]:
    """The files of a log in groups, each for one task, in order; none if one process must read it, since it numbers its
    sessions through all files."""
    if log.format in WITHOUT_TIMES or log.table is not None:
        return []
    groups: list[list[File]] = []
    size = TASK_BYTES
    for path in log.files:
        if size + path.stat().st_size > TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += path.stat().st_size
    return groups


@dataclass(frozen=True)
class ReadFiles:
    """What was found in some files of a log, the folder of their clicks, and the pieces of each part there."""

    folder: Path
    pieces: Mapping[int, list[Path]]
    parsed: ParsedLog
    messages: Sequence[str]


class Messages(SilentProgress):
    """Keeps messages, which the process that prepares the log prints in the order of the files."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def read_files(
    log: Log,
    folder: Path,
    parts: int,
    max_buffered: int,
    given: tuple[int, Sequence[File]],
    unit: str | None = None,
    progress: Progress | None = None,
) -> ReadFiles:
    """Read some files of a log, here or as a task, whose messages are kept for later."""
    number, files = given
    options, messages = log.options if unit is None else replace(log.options, time_unit=unit), Messages()
    own = folder / f"{number:05d}{f'-{unit}' if unit else ''}"
    own.mkdir(exist_ok=True)  # it exists if the process of this task has died before
    store = PieceStore(own, parts, max_buffered)
    parsed = replace(log, options=options).read(progress or messages, store, files)
    store.close()
    parsed.bad_lines.move_to(own / BAD_LINES)
    return ReadFiles(own, dict(store.files), parsed, messages.texts)


def read_by_tasks(
    read: "partial[ReadFiles]", groups: list[list[File]], place: Workplace, unit: str | None, progress: Progress
) -> list[ReadFiles]:
    """Read groups of files, each in a task of its own; `unit` is that of --time-unit."""
    results: list[ReadFiles] = place.run_all(read, list(enumerate(groups)), "Reading")
    first = next((result.parsed.time_unit for result in results if result.parsed.time_unit is not None), None)
    if unit is None and first is not None:
        # The unit of numbers is guessed from the first of the whole log; a file that begins differently is read again.
        wrong = [number for number, result in enumerate(results) if result.parsed.time_unit not in (first, None)]
        again = place.run_all(partial(read, unit=first), [(number, groups[number]) for number in wrong], "Reading")
        for number, result in zip(wrong, again, strict=True):
            results[number] = result
    messages = {text.partition(": ")[2] or text: text for result in reversed(results) for text in result.messages[::-1]}
    for message in reversed(messages.values()):  # what is the same for several files is said of the first
        progress.message(message)
    return results


def join(read: Sequence[ReadFiles]) -> ReadLog:
    """One log of what was read of its files."""
    names, codes = merge_items([pl.read_ipc(files.folder / ITEMS)["item"] for files in read])
    parts: defaultdict[int, list[Piece]] = defaultdict(list)
    first_row = 0
    for files, own_codes in zip(read, codes, strict=True):
        numbers = None
        if own_codes is not None:
            numbers = files.folder / NUMBERS
            np.save(numbers, own_codes)
        for part, paths in files.pieces.items():
            parts[part] += [Piece(path, first_row, numbers) for path in paths]
        first_row += files.parsed.clicks
    return ReadLog(merge_parsed(read), [Pieces(parts[part]) for part in sorted(parts)], names)


def merge_items(names: Sequence[pl.Series]) -> tuple[pl.Series, list[Codes | None]]:
    """One numbering of the items of several: their ids, and the numbers there of the items of each.

    >>> ids, codes = merge_items([pl.Series(["a", "b"]), pl.Series(["c", "b"])])
    >>> ids.to_list(), codes[0], codes[1].tolist()
    (['a', 'b', 'c'], None, [2, 1])
    """
    if len(names) == 1:
        return names[0], [None]
    merged = pl.concat([ids.cast(pl.String).alias("item") for ids in names]).unique(maintain_order=True)
    numbers = merged.to_frame().with_row_index("number")
    codes: list[Codes | None] = [None]  # the items of the first keep their numbers
    for ids in names[1:]:
        wanted = ids.cast(pl.String).alias("item").to_frame()
        codes.append(wanted.join(numbers, on="item", how="left", maintain_order="left")["number"].to_numpy())
    return merged, codes


def merge_parsed(read: Sequence[ReadFiles]) -> ParsedLog:
    """One ParsedLog for the files of a log."""
    whole = read[0].parsed
    for files in read[1:]:
        whole.merge(files.parsed)
    bad_lines = BadLines(whole.bad_lines.policy, whole.bad_lines.limit)
    for files in read:
        bad_lines.merge(files.parsed.bad_lines, files.folder / BAD_LINES)
    return replace(whole, bad_lines=bad_lines)
