"""ClickCollector: rows as they are in the file -> checked clicks: session, item and time, added to a `ClickStore`.

Ids stay the strings they are in the file. Every reader adds a block of rows at a time.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import polars as pl

from posrec.data.source.readers.bad_lines import BadLine, BadLines
from posrec.data.source.readers.events import EventKinds
from posrec.data.source.readers.options import LogOptions
from posrec.data.source.readers.times import TimeReader, parse_text
from posrec.errors import InputError
from posrec.progress import Progress

NEGATIVE = re.compile(r"-[0-9]+(\.[0-9]+)?")
CLICK_SCHEMA = {"session": pl.String, "item": pl.String, "time": pl.Int64}

# The texts that could not be read as a time, for each role of a column ("time", "date").
BadTimes = dict[str, set[str]]
Step = Callable[[pl.DataFrame], pl.DataFrame]


class ClickStore:
    """Keeps the clicks of a log in memory, in the order of the file; `PieceStore` (data/source/reading.py) in files.

    It takes 16 bytes a click: ids are polars categories, four bytes each, with one copy of each distinct id.
    `session_type` and `item_type` are the types that readers give to ids.
    """

    def __init__(self) -> None:
        self.session_type: pl.DataType = pl.Categorical(pl.Categories.random())
        self.item_categories = pl.Categories.random()
        self.item_type = pl.Categorical(self.item_categories)
        self.frames: list[pl.DataFrame] = []
        self.count = 0  # of all clicks that were added

    def add(self, clicks: pl.DataFrame) -> None:
        self.frames.append(clicks)
        self.count += len(clicks)

    def take(self) -> pl.DataFrame:
        """The clicks that are in memory, which the store then forgets."""
        frames, self.frames = self.frames, []
        return pl.concat(frames) if frames else pl.DataFrame(schema=CLICK_SCHEMA)

    def item_names(self) -> pl.Series:
        """The id of each item, by its category's number."""
        return self.item_categories.to_series()


@dataclass(frozen=True)
class ParsedLog:
    """What was found in a log, beside its clicks.

    `by_user`: its sessions are users, whose clicks are yet to be split into sessions. `finish`, if a format has it, is
    the last step of reading, clicks -> clicks, which needs all clicks of a session.
    """

    by_user: bool
    kinds: EventKinds
    bad_lines: BadLines
    finish: Step | None
    rows: int  # of the log, without blank and bad ones
    clicks: int  # rows that are clicks
    time_unit: str | None  # of times that are numbers

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
        time_unit: str | None = None,
        default_events: tuple[str, ...] = (),
    ) -> None:
        self.progress, self.options, self.store = progress, options, store
        self.read_time = TimeReader(progress, time_unit or options.time_unit, options.time_format)
        self.by_user = False  # the sessions are users
        self.events = EventKinds(options, default_events)
        self.bad_lines = BadLines(options.bad_lines, options.bad_lines_limit)
        self.rows = 0

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
            pl.col("item").cast(self.store.item_type),
            self.read_time(rows["time"]).alias("time"),
            *(self.events.click_columns() if events is not None else []),
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
            self.bad_lines.add(broken)
        except InputError:
            if checked is not None and checked.events is not None:
                self.events.count(checked.events)
            self.events.report_so_far(self.progress)
            raise

    def keep(self, checked: CheckedRows) -> None:
        """Add the good rows of a block."""
        self.rows += checked.rows
        self.store.add(checked.clicks)
        if checked.events is not None:
            self.events.count(checked.events)

    def parsed_log(self, finish: Step | None = None) -> ParsedLog:
        return ParsedLog(
            self.by_user, self.events, self.bad_lines, finish, self.rows, self.store.count, self.read_time.unit
        )


def bad_ids(rows: pl.DataFrame) -> pl.Series:
    """Whether the session or the item of each row is missing or negative."""
    suspect = pl.any_horizontal(is_missing(name) | pl.col(name).str.starts_with("-") for name in ("session", "item"))
    found = rows.select(suspect).to_series()  # which is faster than the whole check, and every click goes through it
    return rows.select(bad_id("session") | bad_id("item")).to_series() if found.any() else found


def is_missing(column: str) -> pl.Expr:
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "")


def bad_id(column: str) -> pl.Expr:
    """Whether an id is missing or a negative number: logs write -1 for "unknown" far more often than as an id."""
    return is_missing(column) | pl.col(column).cast(pl.String).str.contains(f"^{NEGATIVE.pattern}$")


def blank_rows(rows: pl.DataFrame) -> pl.Series:
    """Whether a row holds nothing, as a blank line does."""
    return rows.select(pl.all_horizontal(pl.all().cast(pl.String).str.strip_chars().fill_null("") == "")).to_series()


def id_fault(value: object) -> str | None:
    """What is wrong with an id, for an error message; None if nothing is."""
    if value is None or value == "":
        return "is missing"
    if str(value)[0] == "-" and NEGATIVE.fullmatch(str(value)):
        return f"is {value}, and an id can't be negative"
    return None
