"""ClickCollector: rows as they are in the file -> the checked click frame of a ParsedLog.

Ids stay the strings they are in the file. Every reader adds a block of rows at a time, and a `ClickStore` keeps the
clicks.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import polars as pl

from posrec.data.source.readers.bad_lines import BadLine, BadLines
from posrec.data.source.readers.events import EventKinds
from posrec.data.source.readers.options import LogOptions
from posrec.data.source.readers.times import TimeReader, parse_text
from posrec.errors import InputError
from posrec.progress import Progress

NEGATIVE = re.compile(r"-[0-9]+(\.[0-9]+)?")
BETWEEN_IDS = "\x1f"  # between the parts of a composite session id: ASCII's own separator, which ids don't contain

# The texts that could not be read as a time, for each role of a column ("time", "date").
BadTimes = dict[str, set[str]]
Step = Callable[[pl.DataFrame], pl.DataFrame]


CLICK_SCHEMA = {"session": pl.String, "item": pl.String, "time": pl.Int64}


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
        self.kept = 0

    def add(self, clicks: pl.DataFrame) -> None:
        self.frames.append(clicks)
        self.kept += len(clicks)

    def close(self) -> pl.DataFrame:
        """All clicks, once the log is read."""
        frames, self.frames = self.frames, []
        return pl.concat(frames) if frames else pl.DataFrame(schema=CLICK_SCHEMA)

    def item_names(self) -> pl.Series:
        """The id of each item, by its category's number."""
        return self.item_categories.to_series()


@dataclass(frozen=True)
class ParsedLog:
    """The click frame of a log: session, item, time, and `weight` and `target` where the log's options ask for them.

    `by_user`: its sessions are users, whose clicks are yet to be split into sessions. A store that keeps clicks
    in files leaves `clicks` empty. `finish`, if a format has it, is the last step of reading, clicks -> clicks, which
    needs all clicks of a session.
    """

    clicks: pl.DataFrame
    by_user: bool = False
    kinds: EventKinds = field(default_factory=lambda: EventKinds(LogOptions()))
    bad_lines: BadLines = field(default_factory=BadLines)
    finish: Step | None = None
    rows: int = 0  # of the log, without blank and bad ones
    kept: int = 0  # rows that are clicks
    time_unit: str | None = None  # of times that are numbers

    @property
    def events(self) -> dict[str, int]:
        """The kinds of events in the log, with their counts."""
        return self.kinds.ordered()

    def report(self, progress: Progress) -> None:
        """Report on broken lines and on the kinds of events, when the log is read."""
        self.kinds.report(self.rows, self.kept, progress)
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
        options: LogOptions | None = None,
        time_unit: str | None = None,
        default_events: tuple[str, ...] = (),
        store: ClickStore | None = None,
    ) -> None:
        options = options or LogOptions()
        self.store, self.whole_log = store or ClickStore(), store is None
        self.read_time = TimeReader(progress, time_unit or options.time_unit, options.time_format)
        self.progress, self.options = progress, options
        self.by_user = False  # the sessions are users
        self.events = EventKinds(options, default_events)
        self.bad_lines = BadLines(options.bad_lines, options.bad_lines_limit)
        self.rows = 0

    def check(self, rows: pl.DataFrame) -> CheckedRows:
        """`rows` has the columns session, item, time and, if there is one, event, all as in the file."""
        events = rows["event"].cast(pl.String) if "event" in rows.columns else None
        lost_event, others = False, 0
        if events is not None and self.events.read:
            # A truncated line has lost its event. That is an error, unlike an event that was not asked for.
            lost_event = events.null_count() > 0
            wanted = events.is_in(self.events.read).fill_null(False)
            others = len(rows) - int(wanted.sum())
            if lost_event:  # in a blank line too, which is not a row
                others -= int(rows.filter(events.is_null()).select(blank_rows(rows)).to_series().sum())
            numbers, rows = wanted.arg_true(), rows.filter(wanted)
        else:
            numbers = pl.int_range(len(rows), eager=True)
        if self.read_time.may_need_unit(rows["time"]):
            self.read_time.find_unit(rows.filter(~(bad_id("session") | bad_id("item")))["time"])
        clicks = rows.select(
            pl.col("session").cast(pl.String).cast(self.store.session_type),
            pl.col("item").cast(pl.String).cast(self.store.item_type),
            self.read_time.fast_expression(rows["time"]).alias("time"),
            *(self.events.click_columns() if events is not None else []),
            (suspect_id("session") | suspect_id("item")).alias("suspect"),
        )
        if not (clicks["time"].null_count() or clicks["suspect"].any() or "date" in rows.columns):
            return CheckedRows(clicks.drop("suspect"), [], {}, lost_event, others + len(rows), events)
        return self.check_slowly(rows, clicks.drop("suspect"), numbers, lost_event, others, events)

    def check_slowly(
        self,
        rows: pl.DataFrame,
        clicks: pl.DataFrame,
        numbers: pl.Series,
        lost_event: bool,
        others: int,
        events: pl.Series | None,
    ) -> CheckedRows:
        """The slow path: read dates and times of any layout, find bad rows, drop blank lines."""
        if clicks["time"].null_count():
            clicks = clicks.with_columns(self.read_time(rows["time"]).alias("time"))
        unread = {"time": clicks["time"].is_null()}
        if "date" in rows.columns:
            clicks = clicks.with_columns(parse_text(rows["date"]).alias("day"))
            unread["date"] = clicks["day"].is_null()
        bad = rows.select(bad_id("session") | bad_id("item")).to_series()
        for column in unread.values():
            bad |= column
        if not bad.any():
            return CheckedRows(clicks, [], {}, lost_event, others + len(rows), events)
        blank = rows.select(blank_rows(rows)).to_series()
        bad_times = {role: set(rows[role].filter(column).cast(pl.String)) for role, column in unread.items()}
        bad_rows = numbers.filter(bad & ~blank).to_list()
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
        """Everything that was kept. A store may have a part of the log alone: whoever gave it finishes and reports."""
        parsed = ParsedLog(self.store.close(), self.by_user, self.events, self.bad_lines, finish, self.rows,
                           self.store.kept, self.read_time.unit)  # fmt: skip
        if not self.whole_log:
            return parsed
        parsed.report(self.progress)
        return parsed if finish is None else replace(parsed, clicks=finish(parsed.clicks), finish=None)


def session_id(columns: tuple[str, ...]) -> pl.Expr:
    """The session's id from its column, or from several; null where one of several is missing or negative."""
    if len(columns) == 1:
        return pl.col(columns[0])
    joined = pl.concat_str(pl.col(columns).cast(pl.String), separator=BETWEEN_IDS)
    return pl.when(~pl.any_horizontal(bad_id(name) for name in columns)).then(joined)


def suspect_id(column: str) -> pl.Expr:
    """Whether an id needs the slow check; this one is fast, since every click goes through it."""
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "") | text.str.starts_with("-")


def bad_id(column: str) -> pl.Expr:
    """Whether an id is missing or a negative number: logs write -1 for "unknown" far more often than as an id."""
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "") | text.str.contains(f"^{NEGATIVE.pattern}$")


def blank_rows(rows: pl.DataFrame) -> pl.Expr:
    """Whether a row holds nothing, as a blank line does."""
    return pl.all_horizontal(pl.col(rows.columns).cast(pl.String).str.strip_chars().fill_null("") == "")


def id_fault(value: object) -> str | None:
    """What is wrong with an id, for an error message; None if nothing is."""
    if value is None or value == "":
        return "is missing"
    if str(value)[0] == "-" and NEGATIVE.fullmatch(str(value)):
        return f"is {value}, and an id can't be negative"
    return None
