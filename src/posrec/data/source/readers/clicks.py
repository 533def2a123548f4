"""ClickCollector: rows as they are in the file -> checked clicks, added to a `ClickStore`.

Whole blocks are parsed at once, which is fast. Only if something is wrong are the records of a
block read one by one, to find the line.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import polars as pl

from posrec.data.source.blocks import QUOTED_LINES, Block, split_block
from posrec.data.source.files import File
from posrec.data.source.readers.bad_lines import BadLine, BadLines
from posrec.data.source.readers.columns import (
    Columns,
    bad_id,
    choose_columns,
    id_fault,
    normal_ids,
)
from posrec.data.source.readers.events import EventKinds
from posrec.data.source.readers.options import LogOptions
from posrec.data.source.readers.times import TimeReader, count_days, parse_text
from posrec.errors import InputError, plural
from posrec.progress import Progress

NO_SESSION = (
    "if clicks without a session have a user, name that column too, with --user-column"
)
NO_TIME = (
    "write times in ISO 8601 (2026-01-31T12:00:00Z) or as seconds or milliseconds, or "
    "describe them with --time-format"
)
RECORDS_BYTES = 1 << 20  # of a block whose records are read one by one

Row = Sequence[str | None]  # the values of the columns of a click


class Broken(Exception):
    """A record that can't be used: the reason, and what to do if not to fix or remove it."""

    def __init__(self, reason: str, advice: str = "") -> None:
        self.reason = reason
        self.advice = advice

    def at(self, path: File, line: int) -> InputError:
        advice = self.advice or "fix the line"
        return InputError(f"{path}, line {line}: {self.reason}; {advice}")


class LineFormat(Protocol):
    """How lines are read: whole blocks of them, or one record after the other."""

    columns: Columns
    quoted: bool = False  # a line break inside double quotes does not end a record

    def parse(self, block: Block) -> pl.DataFrame: ...

    def is_suspect(self, block: Block, rows: pl.DataFrame) -> bool:
        """Whether parsed rows may be wrong, so that records must be read one by one."""
        return False

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        """The rows of a record that begins at this line; raises Broken."""
        ...


class ItemIds:
    """The ids of items, numbered by polars as categories."""

    def __init__(self) -> None:
        self.categories = pl.Categories.random()
        self.dtype = pl.Categorical(self.categories)
        # polars forgets categories with the last series that has them.
        self.anchor = pl.Series([], dtype=self.dtype)

    def names(self) -> pl.Series:
        return self.categories.to_series()


class ClickStore:
    """Keeps the clicks of a log in memory, 16 bytes each; `folder` is for other files."""

    def __init__(self, items: ItemIds, folder: Path) -> None:
        self.items = items
        self.folder = folder
        self.session_type: pl.DataType = pl.Categorical(pl.Categories.random())
        self.frames: list[pl.DataFrame] = []

    def add(self, clicks: pl.DataFrame) -> None:
        self.frames.append(clicks)

    def take(self) -> pl.DataFrame:
        if not self.frames:
            return pl.DataFrame()
        # Files without a column of events have no `kind`.
        clicks = pl.concat(self.frames, rechunk=True, how="diagonal")
        self.frames = []
        return clicks


@dataclass
class ParsedLog:
    kinds: EventKinds
    bad_lines: BadLines
    by_user: bool = False  # some sessions are users, whose clicks are yet to be split
    clicks: int = 0  # rows that are clicks
    outside: int = 0  # clicks that --since and --until drop
    days: Counter[int] = field(default_factory=Counter)  # clicks by day since 1970
    time_unit: str | None = None  # of times that are numbers

    def merge(self, other: "ParsedLog") -> None:
        self.kinds.merge(other.kinds)
        self.bad_lines.merge(other.bad_lines)
        self.by_user |= other.by_user
        self.clicks += other.clicks
        self.outside += other.outside
        self.days += other.days

    def report(self, progress: Progress) -> None:
        clicks = self.clicks + self.outside
        self.kinds.report(self.bad_lines.good.total(), clicks, progress)
        self.bad_lines.finish(progress)
        if self.outside:
            outside = f"{self.outside:,} of {plural(clicks, 'click')} are not between --since and"
            if not self.clicks:
                raise InputError(f"{outside} --until; give other dates")
            progress.message(f"{outside} --until and were left out")


class CheckedRows(NamedTuple):
    clicks: pl.DataFrame  # the good rows of the kinds of events that are read
    bad: list[int]  # the rows that can't be used
    lacks_events: bool  # of some rows, as blank and truncated lines do
    good: int  # rows that are not bad, of all kinds of events
    events: pl.Series | None


class ClickCollector:
    """Checks rows and adds their clicks to the store; times become milliseconds."""

    def __init__(
        self,
        progress: Progress,
        options: LogOptions,
        store: ClickStore,
        whole_log: Sequence[File] = (),
        default_events: Sequence[str] = (),
    ) -> None:
        self.progress = progress
        self.options = options
        self.store = store
        self.whole_log = whole_log
        self.read_time = TimeReader(progress, options.time_unit, options.time_format)
        self.guesses: dict[str, tuple[str, ...]] = {}
        self.events = EventKinds(options, default_events)
        path = store.folder / f"{secrets.token_hex(8)}.jsonl"
        bad_lines = BadLines(options.bad_lines, options.bad_lines_limit, path)
        self.parsed = ParsedLog(self.events, bad_lines)

    def choose_columns(self, path: File | str, names: list[str]) -> Columns:
        """The columns of a file. A guess is reported unless the file before has the same."""
        columns, guesses = choose_columns(path, names, self.options)
        file = getattr(path, "name", path)
        for role, guessed in guesses.items():
            if guessed and guessed != self.guesses.get(role):
                noun = "column" if len(guessed) == 1 else "columns"
                listed = " and ".join(map(repr, guessed))
                self.progress.message(f"{file}: {noun} {listed} read as the {role}")
        self.guesses = guesses
        self.events.column = columns.event or self.events.column
        self.parsed.by_user |= columns.user is not None
        return columns

    def check(self, table: pl.DataFrame, columns: Columns) -> CheckedRows:
        """Check rows whose values are as in the file."""
        total = len(table)
        if self.options.normalize_ids:
            table = table.with_columns(normal_ids(pl.col(columns.ids)))
        rows = table.select(columns.select()).with_row_index("number")
        rows = rows.with_columns(pl.col("session", "item").cast(pl.String))
        events = rows["event"].cast(pl.String) if "event" in rows.columns else None
        lacks_events = False
        if events is not None and self.events.read:
            lacks_events = events.null_count() > 0
            rows = rows.filter(events.is_in(self.events.read).fill_null(False))
        clicks = rows.select(self.click_columns(rows))
        bad = bad_ids(rows)
        for name in {"time", "day"} & set(clicks.columns):
            bad |= clicks[name].is_null()
        bad_rows = rows["number"].filter(bad).to_list()
        if bad_rows:
            clicks = clicks.filter(~bad)
        good = total - len(bad_rows)
        return CheckedRows(clicks, bad_rows, lacks_events, good, events)

    def click_columns(self, rows: pl.DataFrame) -> list[pl.Expr | pl.Series]:
        columns: list[pl.Expr | pl.Series] = [
            pl.col("session").cast(self.store.session_type),
            pl.col("item").cast(self.store.items.dtype).to_physical(),
            self.read_time(rows["time"]).alias("time"),
        ]
        if "date" in rows.columns:
            columns.append(parse_text(rows["date"]).alias("day"))
        if "event" in rows.columns:
            columns += self.events.click_columns()
        if "by_user" in rows.columns:
            columns.append(pl.col("by_user"))
        return columns

    def keep(
        self, checked: CheckedRows, file: str, broken: Iterable[BadLine] = ()
    ) -> None:
        clicks = checked.clicks
        day = "day" if "day" in clicks.columns else "time"
        if self.options.since is not None:
            clicks = clicks.filter(pl.col(day) >= self.options.since)
        if self.options.until is not None:
            clicks = clicks.filter(pl.col(day) < self.options.until)
        self.store.add(clicks)
        self.parsed.time_unit = self.read_time.unit
        self.parsed.clicks += len(clicks)
        self.parsed.outside += len(checked.clicks) - len(clicks)
        self.parsed.bad_lines.good[file] += checked.good
        self.parsed.days.update(count_days(clicks[day]))
        if checked.events is not None:
            self.events.count(checked.events)
        try:
            self.parsed.bad_lines.add(broken)
        except InputError:
            # Lines without an item are often of a kind of event that has none.
            self.events.report_so_far(self.progress)
            raise


def bad_ids(rows: pl.DataFrame) -> pl.Series:
    # Every click goes through the first check, which is faster than the whole one.
    ids = pl.col("session", "item")
    suspect = ids.is_null() | (ids == "") | ids.str.starts_with("-")
    is_suspect = rows.select(pl.any_horizontal(suspect)).to_series()
    if not is_suspect.any():
        return is_suspect
    return rows.select(bad_id("session") | bad_id("item")).to_series()


def add_block(block: Block, format: LineFormat, collector: ClickCollector) -> None:
    if add_whole(block, format, collector):
        return
    for chunk in split_block(block, RECORDS_BYTES, format.quoted):
        if not add_whole(chunk, format, collector):
            add_records(chunk, format, collector)


def add_whole(block: Block, format: LineFormat, collector: ClickCollector) -> bool:
    """Whether nothing was wrong, so that the clicks were added."""
    try:
        rows = format.parse(block)
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        return False
    checked = collector.check(rows, format.columns)
    if checked.bad or checked.lacks_events or format.is_suspect(block, rows):
        return False
    collector.keep(checked, str(block.path))
    return True


def add_records(block: Block, format: LineFormat, collector: ClickCollector) -> None:
    rows: list[Row] = []
    starts: list[int] = []  # where the record of each row begins, in `lines`
    broken: dict[int, Broken] = {}
    lines = block.data.split(b"\n")
    start = 0
    while start < len(lines):
        count = quoted_lines(lines, start) if format.quoted else 1
        record = b"\n".join(lines[start : start + count])
        try:
            if record.strip():
                line = block.first_line + start
                record_rows = format.read_record(as_text(record), line)
                rows += record_rows
                starts += [start] * len(record_rows)
        except Broken as fault:
            broken[start] = fault
        # A stray quote may have joined other lines with the first, which alone is broken.
        start += 1 if start in broken else count
    schema = dict.fromkeys(format.columns.names, pl.String)
    table = pl.DataFrame(rows, schema, orient="row")
    checked = collector.check(table, format.columns)
    for row in checked.bad:
        broken[starts[row]] = find_fault(table.row(row, named=True), format.columns)
    collector.keep(checked, str(block.path), bad_lines(block, lines, broken))


def as_text(record: bytes) -> str:
    try:
        return record.decode("utf-8")
    except UnicodeDecodeError:
        raise Broken("not UTF-8 text", "convert the file first") from None


def quoted_lines(lines: list[bytes], start: int) -> int:
    """Lines up to the one that closes a quote, or one if none does."""
    if lines[start].count(b'"') % 2:
        for end in range(start + 1, min(start + QUOTED_LINES, len(lines))):
            if lines[end].count(b'"') % 2:
                return end + 1 - start
    return 1


def bad_lines(
    block: Block, lines: list[bytes], broken: Mapping[int, Broken]
) -> Iterator[BadLine]:
    for index, fault in sorted(broken.items()):
        text = lines[index].decode("utf-8", errors="replace").rstrip("\r")
        number = block.first_line + index
        yield BadLine(str(block.path), number, fault.reason, text, fault.advice)


def find_fault(values: Mapping[str, Any], columns: Columns) -> Broken:
    ids = [("session", name) for name in columns.session]
    has_session = ids and not any(id_fault(values[name]) for name in columns.session)
    if columns.user is not None and not has_session:
        if ids and id_fault(values[columns.user]):
            named = ", ".join(map(repr, (columns.user, *columns.session)))
            return Broken(f"no user and no session (columns {named})")
        ids = [("user", columns.user)]
    for role, name in (*ids, ("item", columns.item)):
        if fault := id_fault(values[name]):
            advice = NO_SESSION if role == "session" else ""
            return Broken(f"the {role} (column {name!r}) {fault}", advice)
    name = columns.time
    if columns.date is not None and not is_iso(str(values[columns.date])):
        name = columns.date
    if values[name] is None:
        return Broken(f"the time (column {name!r}) is missing")
    text = str(values[name])
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    if is_iso(text):
        reason = (
            f"{shown!r} in column {name!r} is not a number, unlike the times before it"
        )
        return Broken(reason, "write all times in one way")
    return Broken(f"{shown!r} in column {name!r} is not a time", NO_TIME)


def is_iso(text: str) -> bool:
    """Whether it is a date or time; if it was not read, the times around it are numbers."""
    if not text.strip()[:4].isdigit():
        return False
    return parse_text(pl.Series([text], dtype=pl.String)).null_count() == 0
