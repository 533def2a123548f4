"""ClickCollector: rows as they are in the file -> the checked click frame of a ParsedLog.

Ids stay the strings they are in the file. They are held as polars categories, four bytes each, and every reader adds a
block of rows at a time: what stays in memory is 16 bytes a click and one copy of each distinct id.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from posrec.data.readers.times import TimeReader, parse_text
from posrec.errors import InputError
from posrec.progress import Progress

NEGATIVE = re.compile(r"-[0-9]+(\.[0-9]+)?")
CLICK_SCHEMA = {"session": pl.String, "item": pl.String, "time": pl.Int64}

# The texts that could not be read as a time, for each role of a column ("time", "date").
BadTimes = dict[str, set[str]]
# Called with the first bad row of a block and its bad times; raises an InputError that names the line. The row is None
# where every bad row looks like a blank line; then the function returns if the lines really are blank.
RaiseForRow = Callable[[int | None, BadTimes], None]


@dataclass(frozen=True)
class ParsedLog:
    """The click frame of a log. `by_user`: its sessions are users, whose clicks are yet to be split into sessions."""

    clicks: pl.DataFrame
    by_user: bool = False


class ClickCollector:
    """Collects checked clicks: ids become categories, times become milliseconds."""

    def __init__(self, progress: Progress, events: Sequence[str] = (), time_unit: str | None = None) -> None:
        self.session_type = pl.Categorical(pl.Categories.random())
        self.item_type = pl.Categorical(pl.Categories.random())
        self.read_time = TimeReader(progress, time_unit)
        self.progress = progress
        self.events = list(events)
        self.rows = 0
        self.frames: list[pl.DataFrame] = []

    def add(self, rows: pl.DataFrame, raise_for_row: RaiseForRow) -> None:
        """`rows` has the columns session, item, time and, if events are selected, event, all as in the file."""
        self.rows += len(rows)
        if self.events:
            # A truncated line has lost its event. That is an error, unlike an event that was not asked for.
            if rows["event"].null_count():
                raise_for_row(None, {})
            wanted = rows["event"].is_in(self.events)
            numbers, rows = wanted.arg_true(), rows.filter(wanted)
        else:
            numbers = pl.int_range(len(rows), eager=True)
        clicks = rows.select(
            pl.col("session").cast(pl.String).cast(self.session_type),
            pl.col("item").cast(pl.String).cast(self.item_type),
            self.read_time.fast_expression(rows["time"]).alias("time"),
            (suspect_id("session") | suspect_id("item")).alias("suspect"),
        )
        if clicks["time"].null_count() or clicks["suspect"].any() or "date" in rows.columns:
            clicks = self.check(rows, clicks, numbers, raise_for_row)
        self.frames.append(clicks.drop("suspect"))

    def check(
        self, rows: pl.DataFrame, clicks: pl.DataFrame, numbers: pl.Series, raise_for_row: RaiseForRow
    ) -> pl.DataFrame:
        """The slow path: read dates and times of any layout, raise for bad rows, drop blank lines."""
        if clicks["time"].null_count():
            clicks = clicks.with_columns(self.read_time(rows["time"]).alias("time"))
        unread = {"time": clicks["time"].is_null()}
        if "date" in rows.columns:
            clicks = clicks.with_columns(parse_text(rows["date"]).alias("day"))
            unread["date"] = clicks["day"].is_null()
        bad = rows.select(bad_id("session") | bad_id("item")).to_series()
        for column in unread.values():
            bad |= column
        if bad.any():
            blank = rows.select(pl.all_horizontal(is_blank(name) for name in rows.columns)).to_series()
            bad_rows = numbers.filter(bad & ~blank)
            bad_times = {role: set(rows[role].filter(column).cast(pl.String)) for role, column in unread.items()}
            raise_for_row(next(iter(bad_rows), None), bad_times)
        return clicks.filter(~bad)

    def clicks(self) -> pl.DataFrame:
        return pl.concat(self.frames) if self.frames else pl.DataFrame(schema=CLICK_SCHEMA)

    def parsed_log(self, by_user: bool = False) -> ParsedLog:
        """Everything that was added. If events were selected, report how many rows that kept."""
        clicks = self.clicks()
        if self.events and self.rows:
            if not len(clicks):
                raise InputError(
                    f"none of {self.rows:,} rows is of the events {', '.join(self.events)}; "
                    "name event types that the log has with --events"
                )
            self.progress.message(f"kept {len(clicks):,} of {self.rows:,} rows: events {', '.join(self.events)}")
        return ParsedLog(clicks, by_user)


def suspect_id(column: str) -> pl.Expr:
    """Whether an id needs the slow check; this one is fast, since every click goes through it."""
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "") | text.str.starts_with("-")


def bad_id(column: str) -> pl.Expr:
    """Whether an id is missing or a negative number: logs write -1 for "unknown" far more often than as an id."""
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "") | text.str.contains(f"^{NEGATIVE.pattern}$")


def is_blank(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).str.strip_chars().fill_null("") == ""


def id_fault(value: object) -> str | None:
    """What is wrong with an id, for an error message; None if nothing is."""
    if value is None or str(value) == "":
        return "is missing"
    if NEGATIVE.fullmatch(str(value)):
        return f"is {value}, and an id can't be negative"
    return None
