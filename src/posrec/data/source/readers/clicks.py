"""ClickCollector: rows as they are in the file -> checked clicks, added to a `ClickStore`.

Whole blocks are parsed at once, which is fast and does not say which line is wrong. Only if
something is wrong are the records of the block read one by one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from posrec.data.source.blocks import QUOTED_LINES, Block, split_block
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
TIMES = "write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds, or describe it with --time-format"
NO_SESSION = (
    "if clicks without a session have a user, name that column too, with --user-column"
)
BAD_LINES = "bad-lines.jsonl"
RECORDS_BYTES = 1 << 20  # of the blocks of which records are read one by one

Row = Sequence[str | None]  # the values of the columns of a click


class Broken(Exception):
    """A record that can't be used: the reason, and what to do if not to fix or remove it."""

    def __init__(self, reason: str, advice: str = "") -> None:
        self.reason = reason
        self.advice = advice


class LineFormat:
    """How lines are read: whole blocks of them, or one record after the other."""

    columns: Columns
    quoted: bool = False  # a line break inside double quotes does not end a record

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        """The rows of a block, and whether its records should be read one by one in any case."""
        raise NotImplementedError

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        """The rows of a record that begins at this line; raises Broken."""
        raise NotImplementedError


class ItemIds:
    """The ids of items, numbered by polars as categories; several logs may share a numbering."""

    def __init__(self) -> None:
        self.categories = pl.Categories.random()
        self.dtype = pl.Categorical(self.categories)
        self.anchor = pl.Series(
            [], dtype=self.dtype
        )  # polars forgets categories with the last series that has them

    def names(self) -> pl.Series:
        """The id of each item, by its number."""
        return self.categories.to_series()


class ClickStore:
    """Keeps the clicks of a log in memory, 16 bytes each, in the order of the file.

    `session_type` is the type of sessions' ids. `folder` is for files beside the clicks.
    """

    def __init__(self, items: ItemIds, folder: Path) -> None:
        self.items = items
        self.folder = folder
        self.session_type: pl.DataType = pl.Categorical(pl.Categories.random())
        self.frames: list[pl.DataFrame] = []

    def add(self, clicks: pl.DataFrame) -> None:
        self.frames.append(clicks)

    def take(self) -> pl.DataFrame:
        """The clicks that are in memory, which the store then forgets."""
        frames = self.frames
        self.frames = []
        return pl.concat(frames, rechunk=True) if frames else pl.DataFrame()


@dataclass
class ParsedLog:
    """What was found in a log, beside its clicks."""

    kinds: EventKinds
    bad_lines: BadLines
    by_user: bool = False  # all or some sessions are users, whose clicks are yet to be split into sessions
    rows: int = 0  # of the log, without blank and bad ones
    clicks: int = 0  # rows that are clicks
    days: Counter[int] = field(
        default_factory=Counter
    )  # clicks by day, counted from 1970
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
        """Report on broken lines and on the kinds of events."""
        self.kinds.report(self.rows, self.clicks, progress)
        self.bad_lines.finish(self.rows, progress)


class CheckedRows(NamedTuple):
    """A block of rows after the check."""

    clicks: pl.DataFrame  # the good rows that were asked for
    bad: list[int]  # the rows that can't be used
    has_nulls: bool  # whether rows have lost their event, as those of blank and of truncated lines have
    good: int  # rows that are not bad, whether they were asked for or not
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
        self.progress = progress
        self.options = options
        self.store = store
        self.whole_log = whole_log
        self.read_time = TimeReader(
            progress, time_unit or options.time_unit, options.time_format
        )
        self.guesses: Guesses = {}
        self.has_both = False  # some clicks have a session and others a user
        self.events = EventKinds(options, default_events)
        bad_lines = BadLines(
            options.bad_lines, options.bad_lines_limit, store.folder / BAD_LINES
        )
        self.parsed = ParsedLog(self.events, bad_lines)

    def choose_columns(self, path: File | str, names: list[str]) -> Columns:
        """The columns of a file. A guess is reported unless it is that of the file before."""
        columns, guesses = choose_columns(path, names, self.options)
        for role, guessed in guesses.items():
            if guessed and guessed != self.guesses.get(role):
                written = f"column{'s' * (len(guessed) > 1)} {' and '.join(map(repr, guessed))}"
                self.progress.message(
                    f"{path if isinstance(path, str) else path.name}: {written} read as the {role}"
                )
        self.guesses = guesses
        self.events.column = columns.event
        self.parsed.by_user |= columns.user is not None
        self.has_both = columns.has_both
        return columns

    def check(self, rows: pl.DataFrame) -> CheckedRows:
        """`rows` has session, item, time and, if there is one, event, all as in the file."""
        rows = rows.with_columns(pl.col("session", "item").cast(pl.String))
        events = rows["event"].cast(pl.String) if "event" in rows.columns else None
        total = len(rows)
        numbers = pl.int_range(len(rows), eager=True)
        has_nulls = False
        if events is not None and self.events.read:
            has_nulls = events.null_count() > 0
            wanted = events.is_in(self.events.read).fill_null(False)
            numbers = numbers.filter(wanted)
            rows = rows.filter(wanted)
        bad = bad_ids(rows)
        clicks = rows.select(
            pl.col("session").cast(self.store.session_type),
            pl.col("item").cast(self.store.items.dtype).to_physical(),
            self.read_time(rows["time"]).alias("time"),
            *(
                [parse_text(rows["date"]).alias("day")]
                if "date" in rows.columns
                else []
            ),
            *(self.events.click_columns() if events is not None else []),
            *(
                [pl.col("session").str.starts_with(BETWEEN_IDS).alias("by_user")]
                if self.has_both
                else []
            ),
        )
        for name in {"time", "day"} & set(clicks.columns):
            bad |= clicks[name].is_null()
        if not bad.any():
            return CheckedRows(clicks, [], has_nulls, total, events)
        bad_rows = numbers.filter(bad).to_list()
        return CheckedRows(
            clicks.filter(~bad), bad_rows, has_nulls, total - len(bad_rows), events
        )

    def keep(self, checked: CheckedRows, broken: Iterable[BadLine] = ()) -> None:
        """Add the good rows of a block, and note the broken lines. If that ends the reading, say
        which kinds of events there are: those without an item are often of a kind that has none."""
        self.store.add(checked.clicks)
        self.parsed.rows += checked.good
        self.parsed.clicks += len(checked.clicks)
        self.parsed.days.update(
            count_days(
                checked.clicks["day" if "day" in checked.clicks.columns else "time"]
            )
        )
        if checked.events is not None:
            self.events.count(checked.events)
        try:
            self.parsed.bad_lines.add(broken)
        except InputError:
            self.events.report_so_far(self.progress)
            raise


def bad_ids(rows: pl.DataFrame) -> pl.Series:
    """Whether the session or the item of each row is missing or negative."""
    suspect = pl.any_horizontal(
        is_missing(name) | pl.col(name).str.starts_with("-")
        for name in ("session", "item")
    )
    found = (
        rows.select(suspect).to_series()
    )  # which is faster than the whole check, and every click goes through it
    return (
        rows.select(bad_id("session") | bad_id("item")).to_series()
        if found.any()
        else found
    )


def add_block(block: Block, format: LineFormat, collector: ClickCollector) -> None:
    """Where something is wrong, records are read one by one."""
    if add_whole(block, format, collector):
        return
    for part in split_block(block, RECORDS_BYTES, format.quoted):
        if not add_whole(part, format, collector):
            add_records(part, format, collector)


def add_whole(block: Block, format: LineFormat, collector: ClickCollector) -> bool:
    """Whether nothing was wrong with the block, so that its clicks were added."""
    try:
        table, suspect = format.parse(block)
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        return False
    checked = collector.check(table.select(format.columns.select()))
    if suspect or checked.bad or checked.has_nulls:
        return False
    collector.keep(checked)
    return True


def add_records(block: Block, format: LineFormat, collector: ClickCollector) -> None:
    rows: list[Row] = []
    places: list[
        int
    ] = []  # the line of the block in which the record of each row begins
    broken: dict[int, Broken] = {}
    lines = block.data.split(b"\n")
    place = 0
    while place < len(lines):
        count = quoted_lines(lines, place) if format.quoted else 1
        record = b"\n".join(lines[place : place + count])
        try:
            found = (
                format.read_record(record.decode("utf-8"), block.first_line + place)
                if record.strip()
                else []
            )
            rows += found
            places += [place] * len(found)
        except UnicodeDecodeError:
            broken[place] = Broken("not UTF-8 text", "convert the file first")
        except Broken as fault:
            broken[place] = fault
        # Of a broken record the first line alone is reported, since a stray quote may have joined
        # others with it.
        place += 1 if place in broken else count
    table = pl.DataFrame(
        rows, dict.fromkeys(format.columns.names, pl.String), orient="row"
    )
    checked = collector.check(table.select(format.columns.select()))
    broken |= {
        places[row]: find_fault(table.row(row, named=True), format.columns)
        for row in checked.bad
    }
    collector.keep(
        checked,
        (bad_line(block, lines, place, broken[place]) for place in sorted(broken)),
    )


def quoted_lines(lines: list[bytes], place: int) -> int:
    """The lines of a record: up to the one that closes a quote, or one if none does."""
    if lines[place].count(b'"') % 2:
        for after in range(place + 1, min(place + QUOTED_LINES, len(lines))):
            if lines[after].count(b'"') % 2:
                return after + 1 - place
    return 1


def bad_line(block: Block, lines: list[bytes], place: int, fault: Broken) -> BadLine:
    text = lines[place].decode("utf-8", errors="replace").rstrip("\r")
    return BadLine(
        str(block.path), block.first_line + place, fault.reason, text, fault.advice
    )


def find_fault(values: Mapping[str, Any], columns: Columns) -> Broken:
    """What is wrong with a bad row: an id, or else a time."""
    ids = [("session", name) for name in columns.session]
    if columns.user is not None and (
        not ids or any(id_fault(values[name]) for _, name in ids)
    ):
        ids = [("user", columns.user)]
    for role, name in (*ids, ("item", columns.item)):
        if fault := id_fault(values[name]):
            return Broken(
                f"the {role} (column {name!r}) {fault}",
                NO_SESSION if role == "session" else "",
            )
    name = (
        columns.time
        if columns.date is None or is_iso(str(values[columns.date]))
        else columns.date
    )
    if values[name] is None:
        return Broken(f"the time (column {name!r}) is missing")
    text = str(values[name])
    shown = f"{text[:SHOWN_CHARACTERS]}{'...' * (len(text) > SHOWN_CHARACTERS)}"
    if is_iso(text):
        reason = (
            f"{shown!r} in column {name!r} is not a number, unlike the times before it"
        )
        return Broken(reason, "write all times in one way")
    return Broken(f"{shown!r} in column {name!r} is not a time", TIMES)


def is_iso(text: str) -> bool:
    """Whether a text is a date or time; if not read as one, the times around it are numbers."""
    return (
        text.strip()[:4].isdigit()
        and parse_text(pl.Series([text], dtype=pl.String)).null_count() == 0
    )
