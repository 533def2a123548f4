"""A log as partitions of whole sessions: read into memory, spilled to disk, or read by the tasks of a cluster."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from posrec.data.engines import DiskEngine, Engine, MemoryEngine, RayEngine
from posrec.data.log import Log
from posrec.data.partition import Kept, Partition, give_folder_its_name
from posrec.data.readers.bad_lines import BadLines
from posrec.data.readers.clicks import ParsedLog
from posrec.data.readers.store import ClickStore
from posrec.data.remote import File
from posrec.data.spill import Pieces, SpilledPart, SpillStore, merge_items
from posrec.errors import InputError
from posrec.progress import Progress

TASK_BYTES = 256 << 20  # files are read together by one task up to this size
SEQUENTIAL = ("sessions", "srgnn")  # formats that number sessions through all files, so that one process reads them
BAD_LINES = "bad-lines.jsonl"


@dataclass(frozen=True)
class ReadLog:
    """A log that was read: what was found, its clicks by partition, and the ids of its items by number."""

    parsed: ParsedLog  # without clicks
    kept: list[Kept]
    item_names: pl.Series


def read_log(log: Log, engine: Engine, name: str, progress: Progress) -> ReadLog:
    """Read a log; `name` distinguishes it from others in the engine's folder."""
    if isinstance(engine, MemoryEngine):
        found = read_into_memory(log, progress)
    else:
        groups = file_groups(log) if isinstance(engine, RayEngine) else []
        if len(groups) > 1:
            found = read_by_tasks(log, engine, groups, name, progress)
        else:
            store = SpillStore(engine.folder / name, engine.partitions, engine.clicks_at_once)
            parsed = log.read(progress, store)
            parts = [SpilledPart(store.folder)]
            found = ReadLog(parsed, list(pieces(parts, engine)), parts[0].item_names())
    if not found.parsed.kept:
        raise InputError(f"{log.name} holds no clicks: it is empty, or has nothing below its header")
    return found


def read_into_memory(log: Log, progress: Progress) -> ReadLog:
    store = ClickStore()
    parsed = log.read(progress, store)
    clicks = parsed.clicks.with_columns(pl.col("item").to_physical()).rechunk()  # a copy that steps don't make again
    return ReadLog(replace(parsed, clicks=parsed.clicks.clear()), [Partition(clicks)], store.item_names())


def pieces(parts: Sequence[SpilledPart], engine: DiskEngine) -> list[Pieces]:
    return [Pieces(parts, number) for number in range(engine.partitions)]


def file_groups(log: Log) -> list[list[File]]:
    """The files of a log in groups, each for one task, in order."""
    if log.format in SEQUENTIAL or log.table is not None:
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


def read_by_tasks(log: Log, engine: DiskEngine, groups: list[list[File]], name: str, progress: Progress) -> ReadLog:
    """Read groups of files, each in a task of its own, and put together what they found."""
    folder = engine.folder / name
    folder.mkdir()
    read = partial(read_part, log, folder, engine.partitions, engine.clicks_at_once)
    parts: list[PartRead] = engine.run(read, list(enumerate(groups)), "Reading")
    unit = next((part.parsed.time_unit for part in parts if part.parsed.time_unit is not None), None)
    if unit is not None and log.options.time_unit is None:
        # The unit of numbers is guessed from the first of the whole log; a file that begins differently is read again.
        wrong = [number for number, part in enumerate(parts) if part.parsed.time_unit not in (unit, None)]
        again = partial(read, unit=unit)
        for number, part in zip(wrong, engine.run(again, [(n, groups[n]) for n in wrong], "Reading"), strict=True):
            parts[number] = part
    for message in dict.fromkeys(message for part in parts for message in part.messages):
        progress.message(message)
    parsed = merge_parsed([part.parsed for part in parts], [part.folder for part in parts])
    parsed.report(progress)
    names, codes = merge_items([SpilledPart(part.folder).item_names() for part in parts])
    spilled, row = [], 0
    for part, own_codes in zip(parts, codes, strict=True):
        spilled.append(SpilledPart(part.folder, row, own_codes))
        row += part.parsed.kept
    return ReadLog(parsed, list(pieces(spilled, engine)), names)


@dataclass(frozen=True)
class PartRead:
    """What the task of a group of files found, and the folder with its clicks."""

    folder: Path
    parsed: ParsedLog
    messages: list[str]


class Messages(Progress):
    """Keeps messages, which the process that prepares the log prints in the order of the files."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def message(self, text: str) -> None:
        self.kept.append(text)


def read_part(
    log: Log, folder: Path, partitions: int, clicks_at_once: int, given: Any, unit: str | None = None
) -> PartRead:
    """The task of a group of files. The folder gets its name when everything is in it."""
    number, files = given
    options = log.options if unit is None else replace(log.options, time_unit=unit)
    done = folder / f"{number:05d}{f'-{unit}' if unit else ''}"
    unfinished = done.with_name(f".{done.name}.{secrets.token_hex(4)}")
    messages, store = Messages(), SpillStore(unfinished, partitions, clicks_at_once, whole_log=False)
    parsed = replace(log, files=files, options=options).read(messages, store)
    parsed.bad_lines.move_to(unfinished / BAD_LINES)
    give_folder_its_name(unfinished, done)
    return PartRead(done, parsed, messages.kept)


def merge_parsed(parts: Sequence[ParsedLog], folders: Sequence[Path]) -> ParsedLog:
    """One ParsedLog for the parts of a log."""
    first = parts[0]
    kinds, bad_lines = first.kinds, BadLines(first.bad_lines.policy, first.bad_lines.limit)
    for part in parts[1:]:
        kinds.merge(part.kinds)
    for part, folder in zip(parts, folders, strict=True):
        bad_lines.merge(part.bad_lines, folder / BAD_LINES)
    return replace(
        first, by_user=any(part.by_user for part in parts), kinds=kinds, bad_lines=bad_lines,
        rows=sum(part.rows for part in parts), kept=sum(part.kept for part in parts),
    )  # fmt: skip
