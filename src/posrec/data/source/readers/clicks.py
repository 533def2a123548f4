"""ClickCollector: rows as they are in the file -> checked clicks: session, item and time, added to a `ClickStore`.

Ids stay the strings they are in the file. Whole blocks of lines are parsed at once, which is fast and does not say
which line is wrong. Only if something is wrong are the lines of the block looked at one by one, the faults of each are
described, and the block is parsed again without them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from posrec.data.source.blocks import Block
from posrec.data.source.files import File
from posrec.data.source.readers.bad_lines import BadLine, BadLines
from posrec.data.source.readers.columns import (
    BETWEEN_IDS,
    Columns,
    Guesses,
    bad_id,
    choose_columns,
    id_fault,
    is_missing,
)
from posrec.data.source.readers.events import EventKinds
from posrec.data.source.readers.options import LogOptions
from posrec.data.source.readers.times import TimeReader, count_days, parse_text
from posrec.errors import InputError
from posrec.progress import Progress

SHOWN_CHARACTERS = 80  # of a value in a message
TIMES = (
    "write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds, or describe it with --time-format"
)
NO_SESSION = "if clicks without a session have a user, name that column too, with --user-column"
BAD_LINES = "bad-lines.jsonl"

# The texts that could not be read as a time, for each role of a column ("time", "date").
BadTimes = dict[str, set[str]]
# What is wrong with a line or row, and what to do about it where that is more than to fix or remove it.
Fault = tuple[str, str]


class LineFormat:
    """How blocks of lines are parsed, and searched for broken ones."""

    advice = ""  # for a block that can't be parsed although each of its lines looks right

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        """The rows of a block, and whether its lines should be looked at even if every row seems right."""
        raise NotImplementedError

    def fault(self, line: str, bad_times: BadTimes) -> Fault | None:
        """What is wrong with a line; None if nothing is."""
        raise NotImplementedError

    def find_broken(self, block: Block, bad_times: BadTimes) -> Iterator[BadLine]:
        """The broken lines of a block, given the texts that could not be read as times; blank lines are not broken."""
        for number, line in enumerate(block.data.decode("utf-8").split("\n"), start=block.first_line):
            if line.strip() and (fault := self.fault(line, bad_times)):
                yield BadLine(str(block.path), number, fault[0], line.rstrip("\r"), fault[1])


class ItemIds:
    """The ids of items, numbered by polars as categories; one numbering may be that of several logs."""

    def __init__(self) -> None:
        self.categories = pl.Categories.random()
        self.dtype = pl.Categorical(self.categories)
        self.anchor = pl.Series([], dtype=self.dtype)  # polars forgets categories with the last series that has them

    def names(self) -> pl.Series:
        """The id of each item, by its number."""
        return self.categories.to_series()


class ClickStore:
    """Keeps the clicks of a log in memory, in the order of the file; `PieceStore` (data/source/reading.py) in files.

    It takes 16 bytes a click: ids are numbers of four bytes each, with one copy of each distinct id. `session_type` is
    the type that readers give to the ids of sessions. `folder` is for files beside the clicks.
    """

    def __init__(self, items: ItemIds, folder: Path) -> None:
        self.items, self.folder = items, folder
        self.session_type: pl.DataType = pl.Categorical(pl.Categories.random())
        self.frames: list[pl.DataFrame] = []

    def add(self, clicks: pl.DataFrame) -> None:
        self.frames.append(clicks)

    def take(self) -> pl.DataFrame:
        """The clicks that are in memory, which the store then forgets."""
        frames, self.frames = self.frames, []
        return pl.concat(frames, rechunk=True) if frames else pl.DataFrame()


@dataclass
class ParsedLog:
    """What was found in a log, beside its clicks.

    `by_user`: sessions are users, whose clicks are yet to be split into sessions; in a log that has both, some are.
    """

    kinds: EventKinds
    bad_lines: BadLines
    by_user: bool = False
    rows: int = 0  # of the log, without blank and bad ones
    clicks: int = 0  # rows that are clicks
    days: Counter[int] = field(default_factory=Counter)  # clicks by day, counted from 1970
    time_unit: str | None = None  # of times that are numbers

    def merge(self, other: "ParsedLog") -> None:
        """Add what was found in another part of the log."""
        self.kinds.merge(other.kinds)
        self.bad_lines.merge(other.bad_lines)
        self.by_user |= other.by_user
        self.rows += other.rows
        self.clicks += other.clicks
        self.days += other.days

    def report(self, progress: Progress) -> None:
        """Report on broken lines and on the kinds of events, when the log is read."""
        self.kinds.report(self.rows, self.clicks, progress)
        self.bad_lines.finish(self.rows, progress)


@dataclass(frozen=True)
class CheckedRows:
    """A block of rows after the check."""

    clicks: pl.DataFrame  # the good rows that were asked for
    bad_rows: list[int]  # rows that hold something and can't be used
    bad_times: BadTimes
    suspect: bool  # rows were bad or blank, or have lost their event: the lines should be looked at
    rows: int  # without blank and bad ones
    events: pl.Series | None


class ClickCollector:
    """Checks clicks and adds them to the store: times become milliseconds."""

    def __init__(
        self,
        progress: Progress,
        options: LogOptions,
        store: ClickStore,
        whole_log: Sequence[File] = (),
        time_unit: str | None = None,
        default_events: tuple[str, ...] = (),
    ) -> None:
        self.progress, self.options, self.store, self.whole_log = progress, options, store, whole_log
        self.read_time = TimeReader(progress, time_unit or options.time_unit, options.time_format)
        self.guesses: Guesses = {}
        self.has_both = False  # some clicks have a session and others a user
        self.events = EventKinds(options, default_events)
        bad_lines = BadLines(options.bad_lines, options.bad_lines_limit, store.folder / BAD_LINES)
        self.parsed = ParsedLog(self.events, bad_lines)

    def choose_columns(self, path: File | str, names: list[str]) -> Columns:
        """The columns of a file of the log, from those that it has. A guess is reported unless it is that of the file
        before."""
        columns, guesses = choose_columns(path, names, self.options)
        for role, guessed in guesses.items():
            if guessed and guessed != self.guesses.get(role):
                written = f"column{'s' * (len(guessed) > 1)} {' and '.join(map(repr, guessed))}"
                self.progress.message(f"{path if isinstance(path, str) else path.name}: {written} read as the {role}")
        self.guesses, self.events.column = guesses, columns.event
        self.parsed.by_user |= columns.user is not None
        self.has_both = columns.has_both
        return columns

    def check(self, rows: pl.DataFrame) -> CheckedRows:
        """`rows` has the columns session, item, time and, if there is one, event, all as in the file."""
        rows = rows.with_columns(pl.col("session", "item").cast(pl.String))
        events = rows["event"].cast(pl.String) if "event" in rows.columns else None
        numbers, suspect, others = pl.int_range(len(rows), eager=True), False, 0
        if events is not None and self.events.read:
            # A truncated line has lost its event. That is an error, unlike an event that was not asked for.
            suspect = events.null_count() > 0
            wanted = events.is_in(self.events.read).fill_null(False)
            others = len(rows) - int(wanted.sum())
            if suspect:  # in a blank line too, which is not a row
                others -= int(blank_rows(rows.filter(events.is_null())).sum())
            numbers, rows = numbers.filter(wanted), rows.filter(wanted)
        bad = bad_ids(rows)
        if self.read_time.may_need_unit(rows["time"]):
            self.read_time.find_unit(rows["time"].filter(~bad))
        clicks = rows.select(
            pl.col("session").cast(self.store.session_type),
            pl.col("item").cast(self.store.items.dtype).to_physical(),
            self.read_time(rows["time"]).alias("time"),
            *(self.events.click_columns() if events is not None else []),
            *([pl.col("session").str.starts_with(BETWEEN_IDS).alias("by_user")] if self.has_both else []),
        )
        unread = {"time": clicks["time"].is_null()}
        if "date" in rows.columns:
            clicks = clicks.with_columns(parse_text(rows["date"]).alias("day"))
            unread["date"] = clicks["day"].is_null()
        for column in unread.values():
            bad |= column
        if not bad.any():
            return CheckedRows(clicks, [], {}, suspect, others + len(rows), events)
        bad_times = {role: set(rows[role].filter(column).cast(pl.String)) for role, column in unread.items()}
        bad_rows = numbers.filter(bad & ~blank_rows(rows)).to_list()
        return CheckedRows(clicks.filter(~bad), bad_rows, bad_times, True, others + int((~bad).sum()), events)

    def leave_out(self, broken: Iterable[BadLine], checked: CheckedRows | None = None) -> None:
        """Take note of broken lines. If that ends the reading, say which kinds of events there are: lines without an
        item are often events of a kind that has none."""
        try:
            self.parsed.bad_lines.add(broken)
        except InputError:
            if checked is not None and checked.events is not None:
                self.events.count(checked.events)
            self.events.report_so_far(self.progress)
            raise

    def keep(self, checked: CheckedRows) -> None:
        """Add the good rows of a block."""
        self.store.add(checked.clicks)
        self.parsed.rows += checked.rows
        self.parsed.clicks += len(checked.clicks)
        self.parsed.days.update(count_days(checked.clicks["day" if "day" in checked.clicks.columns else "time"]))
        if checked.events is not None:
            self.events.count(checked.events)


def bad_ids(rows: pl.DataFrame) -> pl.Series:
    """Whether the session or the item of each row is missing or negative."""
    suspect = pl.any_horizontal(is_missing(name) | pl.col(name).str.starts_with("-") for name in ("session", "item"))
    found = rows.select(suspect).to_series()  # which is faster than the whole check, and every click goes through it
    return rows.select(bad_id("session") | bad_id("item")).to_series() if found.any() else found


def blank_rows(rows: pl.DataFrame) -> pl.Series:
    """Whether a row holds nothing, as a blank line does."""
    return rows.select(pl.all_horizontal(pl.all().cast(pl.String).str.strip_chars().fill_null("") == "")).to_series()


def add_block(block: Block, format: LineFormat, collector: ClickCollector) -> None:
    """Add the clicks of a block to the collector, and its broken lines to its `bad_lines`."""
    if not block.data[:1024].strip() and not block.data.strip():
        return
    while True:
        try:
            rows, suspect = format.parse(block)
        except (pl.exceptions.PolarsError, UnicodeDecodeError):
            checked, broken = None, list(find_broken_text(block)) or list(format.find_broken(block, {}))
        else:
            checked = collector.check(rows)
            if not (suspect or checked.suspect):
                break
            broken = list(format.find_broken(block, checked.bad_times))
            if len(broken) == len(checked.bad_rows):  # or neither: blank lines alone
                collector.leave_out(broken, checked)
                break
        if not broken:
            last = block.first_line + block.data.rstrip().count(b"\n")
            raise InputError(f"{block.path}, between lines {block.first_line} and {last}: {format.advice}")
        collector.leave_out(broken, checked)
        block = without(block, broken)
    collector.keep(checked)


def without(block: Block, broken: list[BadLine]) -> Block:
    """The block with these lines made blank, so that the other lines keep their numbers."""
    lines = block.data.split(b"\n")
    for bad in broken:
        lines[bad.number - block.first_line] = b""
    return Block(block.path, b"\n".join(lines), block.first_line)


def find_fault(
    value_of: Callable[[str], Any], columns: Columns, bad_times: BadTimes | None, events: Sequence[str] = ()
) -> Fault | None:
    """What is wrong with a record of one of the kinds `events`, given the value of each of its columns. Without
    `bad_times`, it is the time if it is nothing else."""
    if columns.event is not None and events and value_of(columns.event) not in events:
        return None
    for role, name in columns.needed_ids(value_of):
        if fault := id_fault(value_of(name)):
            return f"the {role} (column {name!r}) {fault}", NO_SESSION if role == "session" else ""
    for role, name in columns.times():
        value = value_of(name)
        if value is None or value == "" or bad_times is None or as_text(value) in bad_times.get(role, ()):
            text = str(value)
            shown = repr(value if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")
            if is_iso(text):
                message = f"{shown} in column {name!r} is not a number, unlike the times before it"
                return message, "write all times in one way"
            return f"{shown} in column {name!r} is not a time", TIMES
    return None


def as_text(value: Any) -> str:
    """A value of JSON as polars reads it into a column of text."""
    return value if isinstance(value, str) else json.dumps(value)


def is_iso(text: str) -> bool:
    """Whether a text that was not read as a time is one; then the times around it are numbers."""
    return text.strip()[:4].isdigit() and parse_text(pl.Series([text], dtype=pl.String)).null_count() == 0


def find_broken_text(block: Block) -> Iterator[BadLine]:
    """The lines that are not UTF-8."""
    for number, line in enumerate(block.data.split(b"\n"), start=block.first_line):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", errors="replace")
            yield BadLine(str(block.path), number, "not UTF-8 text", text, "convert the file first")
