"""Delimited text -> click frame, block by block, with the line named when something is wrong.

Ids stay the strings they are in the file. They are held as polars categories, four bytes a click, and the file is read
a block at a time: what stays is 16 bytes a click and one copy of each distinct id, whatever else its lines hold.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posrec.data.sources import Block, blocks
from posrec.data.times import TimeReader, parse_text
from posrec.errors import InputError
from posrec.progress import Progress

NEGATIVE = re.compile(r"-[0-9]+(\.[0-9]+)?")
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar", " ": "a space"}


@dataclass(frozen=True)
class Columns:
    """The names, in the file, of what a click needs; `date` where the day stands apart from the time."""

    session: str
    item: str
    time: str
    event: str | None = None
    date: str | None = None

    def used(self) -> dict[str, str]:
        return {role: name for role, name in vars(self).items() if name is not None}


@dataclass(frozen=True)
class TextLayout:
    """How a line is cut into fields.

    `names` are given where files have no header line of their own (one that starts with the first name is passed
    over all the same); `typed` headers say `name:type`.
    """

    delimiter: str
    quote: str | None = None
    names: tuple[str, ...] | None = None
    typed: bool = False

    def records(self, block: Block) -> Iterator[tuple[int, list[str]]]:
        """(line of the file, fields), slowly; for headers and for finding the line at fault."""
        lines = io.StringIO(decode(block), newline="")
        if self.quote is None:
            reader = csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote)
        begun = block.first_line
        try:
            for record in reader:
                if record:
                    yield begun, record
                begun = block.first_line + reader.line_num
        except csv.Error as error:
            line = block.first_line + max(reader.line_num, 1) - 1
            raise InputError(f"{block.path}, line {line}: no line of delimited text ({error})") from None


# The texts that are no times, in the columns of each role (time, date).
BadTimes = dict[str, set[str]]
# Told the first row of a block that can't be used and the bad times among them; raises what to tell the user.
# Where the row is None only lines that look blank are in question, and it returns if they are.
Complaint = Callable[[int | None, BadTimes], None]


class ClickCollector:
    """Gathers checked clicks; ids become categories of their own, times become milliseconds."""

    def __init__(self, progress: Progress, events: Sequence[str] = (), time_unit: str | None = None) -> None:
        self.session_type = pl.Categorical(pl.Categories.random())
        self.item_type = pl.Categorical(pl.Categories.random())
        self.read_time = TimeReader(progress, time_unit)
        self.events = list(events)
        self.rows = 0
        self.frames: list[pl.DataFrame] = []

    def add(self, rows: pl.DataFrame, complain: Complaint) -> None:
        """`rows` has the columns session, item, time and, where events are picked, event (all as in the file)."""
        self.rows += len(rows)
        if self.events:
            # A line cut short has lost its event, which is another thing than an event nobody asked for.
            if rows["event"].null_count():
                complain(None, {})
            wanted = rows["event"].is_in(self.events)
            numbers, rows = wanted.arg_true(), rows.filter(wanted)
        else:
            numbers = pl.int_range(len(rows), eager=True)
        clicks = rows.select(
            pl.col("session").cast(pl.String).cast(self.session_type),
            pl.col("item").cast(pl.String).cast(self.item_type),
            self.read_time.quickly(rows["time"]).alias("time"),
            (suspect_id("session") | suspect_id("item")).alias("suspect"),
        )
        if clicks["time"].null_count() or clicks["suspect"].any() or "date" in rows.columns:
            clicks = self.look_closer(rows, clicks, numbers, complain)
        self.frames.append(clicks.drop("suspect"))

    def look_closer(
        self, rows: pl.DataFrame, clicks: pl.DataFrame, numbers: pl.Series, complain: Complaint
    ) -> pl.DataFrame:
        """Read times of other layouts and days; complain of rows that can't be used, pass over blank lines."""
        if clicks["time"].null_count():
            clicks = clicks.with_columns(self.read_time(rows["time"]).alias("time"))
        unread = {"time": clicks["time"].is_null()}
        if "date" in rows.columns:
            clicks = clicks.with_columns(parse_text(rows["date"]).alias("day"))
            unread["date"] = clicks["day"].is_null()
        faulty = rows.select(faulty_id("session") | faulty_id("item")).to_series()
        for column in unread.values():
            faulty |= column
        if faulty.any():
            blank = rows.select(pl.all_horizontal(is_blank(name) for name in rows.columns)).to_series()
            culprits = numbers.filter(faulty & ~blank)
            bad_times = {role: set(rows[role].filter(column).cast(pl.String)) for role, column in unread.items()}
            complain(next(iter(culprits), None), bad_times)
        return clicks.filter(~faulty)

    def clicks(self) -> pl.DataFrame:
        return pl.concat(self.frames) if self.frames else pl.DataFrame(schema=CLICK_SCHEMA)


CLICK_SCHEMA = {"session": pl.String, "item": pl.String, "time": pl.Int64}


def suspect_id(column: str) -> pl.Expr:
    """Perhaps faulty; quick, for every click."""
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "") | text.str.starts_with("-")


def faulty_id(column: str) -> pl.Expr:
    """Missing, or a negative number: logs write -1 for 'unknown' far more often than they name an item so."""
    text = pl.col(column).cast(pl.String)
    return text.is_null() | (text == "") | text.str.contains(f"^{NEGATIVE.pattern}$")


def is_blank(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).str.strip_chars().fill_null("") == ""


def read_text(
    files: Sequence[Path],
    layout: TextLayout,
    choose: Callable[[Path, list[str]], Columns],
    collector: ClickCollector,
    progress: Progress,
) -> None:
    """Read every file into `collector`; `choose` picks the columns from a file's header."""
    names: list[str] = []
    columns = Columns("", "", "")
    for block in blocks(files, progress, quoted=layout.quote is not None):
        if block.first_line == 1:
            names, block = header_of(block, layout)
            columns = choose(block.path, names)
        if not block.data[:1024].strip() and not block.data.strip():
            continue
        complain = complaint(block, layout, names, columns, collector.events)
        collector.add(parse_block(block, layout, names, columns, complain), complain)


def header_of(block: Block, layout: TextLayout) -> tuple[list[str], Block]:
    """The names of the columns and the block without its header line."""
    line, _, rest = block.data.partition(b"\n")
    below = Block(block.path, rest, 2)
    if layout.names is not None:
        if not line.lower().startswith(layout.names[0].encode()):
            return list(layout.names), block
        order = [name.strip().lower() for name in next(layout.records(Block(block.path, line, 1)), (1, []))[1]]
        if len(order) != len(layout.names) or not all(map(str.startswith, order, [name[:4] for name in layout.names])):
            raise InputError(
                f"{block.path}, line 1: the header is {', '.join(order)}, but this format has "
                f"{', '.join(layout.names)}; use --format csv"
            )
        return list(layout.names), below
    names = [name.strip() for name in next(layout.records(Block(block.path, line, 1)), (1, []))[1]]
    if layout.typed and len(names) > 1:
        names = [name.partition(":")[0] for name in names]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{block.path}, line 1: the column {twice!r} stands twice in the header; rename one")
    return names, below


def parse_block(
    block: Block, layout: TextLayout, names: list[str], columns: Columns, complain: Complaint
) -> pl.DataFrame:
    scan = pl.scan_csv(
        io.BytesIO(block.data),
        has_header=False,
        separator=layout.delimiter,
        quote_char=layout.quote,
        schema=dict.fromkeys(names, pl.String),
        missing_columns="insert",  # a short first line is told like any other
    )
    try:
        return scan.select(pl.col(name).alias(role) for role, name in columns.used().items()).collect()
    except pl.exceptions.PolarsError as error:
        complain(0, {})
        raise unexplained(block) from error


def complaint(block: Block, layout: TextLayout, names: list[str], columns: Columns, events: Sequence[str]) -> Complaint:
    """A function that finds the first line of the block to blame and raises."""
    between = DELIMITERS.get(layout.delimiter, repr(layout.delimiter))

    def complain(row: int | None, bad_times: BadTimes) -> None:
        for line, record in layout.records(block):
            where = f"{block.path}, line {line}"
            if not any(field.strip() for field in record):
                continue
            if len(record) != len(names):
                raise InputError(
                    f"{where}: {len(record)} fields where {len(names)} are expected, {between} between them; "
                    "mend or remove the line"
                )
            fields = dict(zip(names, record, strict=True))
            if columns.event is None or not events or fields[columns.event] in events:
                blame(where, fields, columns, bad_times)
        if row is not None:
            raise unexplained(block)

    return complain


def unexplained(block: Block) -> InputError:
    """For a block that can't be read though each of its lines looks fine: quotes are what does that."""
    last = block.first_line + block.data.rstrip().count(b"\n")
    return InputError(
        f"{block.path}, between lines {block.first_line} and {last}: the lines can't be told apart; "
        "look for a double quote that is never closed or stands inside a field"
    )


def blame(where: str, fields: dict[str, str], columns: Columns, bad_times: BadTimes) -> None:
    """Raise if this line is at fault."""
    for role in ("session", "item"):
        name = getattr(columns, role)
        if fields[name] == "":
            raise InputError(f"{where}: the {role} (column {name!r}) is missing; mend or remove the line")
        if NEGATIVE.fullmatch(fields[name]):
            raise InputError(
                f"{where}: the {role} (column {name!r}) is {fields[name]}, and an id can't be negative; "
                "mend or remove the line"
            )
    for role in ("time", "date"):
        name = getattr(columns, role)
        if name is not None and (fields[name] == "" or fields[name] in bad_times.get(role, ())):
            fault = "is no time; write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds"
            if parse_text(pl.Series([fields[name]])).null_count() == 0:
                fault = "is no number, as the times before it are; write all of them in one way"
            raise InputError(f"{where}: {fields[name]!r} in column {name!r} {fault}")


def decode(block: Block) -> str:
    try:
        return block.data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = block.first_line + block.data.count(b"\n", 0, error.start)
        raise InputError(f"{block.path}, line {line}: not UTF-8 text; convert the file first") from None
