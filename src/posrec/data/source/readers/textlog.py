"""Delimited text -> click frame, block by block; broken lines are named by their numbers."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.blocks import add_block
from posrec.data.source.readers.clicks import BadTimes, ClickCollector, id_fault, session_id
from posrec.data.source.readers.columns import DELIMITERS, Columns
from posrec.data.source.readers.times import parse_text
from posrec.data.source.remote import File
from posrec.data.source.sources import Block, blocks, decode
from posrec.errors import InputError

STRAY_QUOTE = "the lines can't be separated; look for a double quote that is never closed or is inside a field"
SHOWN_CHARACTERS = 80  # of a value in a message
# How a time can be written, for error messages.
TIMES = (
    "write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds, or describe it with --time-format"
)


class Record(NamedTuple):
    """The fields of a line, or of several lines where a quoted field contains line breaks."""

    line: int  # of the file; the first, if there are several
    lines: int
    fields: list[str]


@dataclass(frozen=True)
class TextLayout:
    """How a line is split into fields.

    `names` are the columns of a format without a header line (a line that starts with the first name is still taken
    for a header and skipped); in a `typed` header each column is written `name:type`.
    """

    delimiter: str
    quote: str | None = None
    names: tuple[str, ...] | None = None
    typed: bool = False

    def records(self, block: Block) -> Iterator[Record]:
        """Slow, for headers and for finding the lines that are wrong."""
        lines = io.StringIO(decode(block), newline="")
        if self.quote is None:
            reader = csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote)
        first_line = block.first_line
        try:
            for record in reader:
                after = block.first_line + reader.line_num
                if record:
                    yield Record(first_line, after - first_line, record)
                first_line = after
        except csv.Error as error:
            line = block.first_line + max(reader.line_num, 1) - 1
            raise InputError(f"{block.path}, line {line}: not delimited text ({error})") from None


def read_text(
    files: Sequence[File],
    layout: TextLayout,
    columns_of: Callable[[File, list[str]], Columns],
    collector: ClickCollector,
) -> None:
    """Read every file into `collector`; `columns_of` chooses the columns from a file's header."""
    names: list[str] = []
    columns = Columns((), "", "")
    for block in blocks(files, collector.progress, quoted=layout.quote is not None):
        if block.first_line == 1:
            names, block = split_header(block, layout)
            columns = columns_of(block.path, names)
            collector.events.column = columns.event
        if not block.data[:1024].strip() and not block.data.strip():
            continue
        log = TextBlocks(layout, names, columns, collector.events.read)
        add_block(block, log.parse, log.find_broken, collector, STRAY_QUOTE)


def split_header(block: Block, layout: TextLayout) -> tuple[list[str], Block]:
    """The names of the columns, and the block without its header line."""
    number, (line, _, rest) = 1, block.data.partition(b"\n")
    while not line.strip() and rest:
        number, (line, _, rest) = number + 1, rest.partition(b"\n")
    below = Block(block.path, rest, number + 1)

    def header() -> list[str]:
        return next((record.fields for record in layout.records(Block(block.path, line, number))), [])

    if layout.names is not None:
        if not line.lower().startswith(layout.names[0].encode()):
            return list(layout.names), block
        order = [name.strip().lower() for name in header()]
        if len(order) != len(layout.names) or not all(map(str.startswith, order, [name[:4] for name in layout.names])):
            raise InputError(
                f"{block.path}, line {number}: the header is {', '.join(order)}, but this format has "
                f"{', '.join(layout.names)}; use --format csv"
            )
        return list(layout.names), below
    names = [name.strip() for name in header()]
    if layout.typed and len(names) > 1:
        names = [name.partition(":")[0] for name in names]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{block.path}, line {number}: the column {repeated!r} appears twice in the header; rename one"
        )
    return names, below


@dataclass(frozen=True)
class TextBlocks:
    """How the blocks of a file are parsed, and searched for broken lines; `events` are the kinds that are read."""

    layout: TextLayout
    names: list[str]
    columns: Columns
    events: Sequence[str]

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        scan = pl.scan_csv(
            io.BytesIO(block.data),
            has_header=False,
            separator=self.layout.delimiter,
            quote_char=self.layout.quote,
            schema=dict.fromkeys(self.names, pl.String),
            missing_columns="insert",  # so that a short first line is reported like any other
        )
        others = (pl.col(name).alias(role) for role, name in self.columns.one_each().items())
        return scan.select(session_id(self.columns.session).alias("session"), *others).collect(), False

    def find_broken(self, block: Block, bad_times: BadTimes) -> Iterator[BadLine]:
        """Where a broken record has several lines, only its first is reported: a stray quote may have joined them."""
        lines = block.data.split(b"\n")
        found = False
        for record in self.layout.records(block):
            if fault := self.fault(record.fields, bad_times):
                found = True
                yield self.bad_line(block, lines, record, *fault)
        if not found and not bad_times and self.layout.quote is not None:
            for record in self.layout.records(block):
                first = record.line - block.first_line
                if b"\n".join(lines[first : first + record.lines]).count(b'"') % 2:
                    yield self.bad_line(block, lines, record, "a double quote is never closed or is inside a field")

    def bad_line(self, block: Block, lines: list[bytes], record: Record, reason: str, advice: str = "") -> BadLine:
        text = lines[record.line - block.first_line].decode("utf-8", errors="replace").rstrip("\r")
        return BadLine(str(block.path), record.line, reason, text, advice or "fix or remove the line")

    @cached_property
    def id_places(self) -> list[tuple[int, str, str]]:
        """(place in the record, role, name) of every id."""
        return [(self.names.index(name), role, name) for role, name in self.columns.ids()]

    @cached_property
    def time_places(self) -> list[tuple[int, str, str]]:
        named = {"time": self.columns.time, "date": self.columns.date}
        return [(self.names.index(name), role, name) for role, name in named.items() if name is not None]

    @cached_property
    def event_place(self) -> int | None:
        return self.names.index(self.columns.event) if self.columns.event is not None and self.events else None

    def fault(self, record: list[str], bad_times: BadTimes) -> tuple[str, str] | None:
        """What is wrong with a line and what to do about it; None if nothing is."""
        fix = "fix or remove the line"
        if len(record) != len(self.names):
            if not any(field.strip() for field in record):
                return None
            between = DELIMITERS.get(self.layout.delimiter, repr(self.layout.delimiter))
            return f"{len(record)} fields where {len(self.names)} are expected, {between} between them", fix
        if self.event_place is not None and record[self.event_place] not in self.events:
            return None
        for place, role, name in self.id_places:
            if fault := id_fault(record[place]):
                return (f"the {role} (column {name!r}) {fault}", fix) if any(map(str.strip, record)) else None
        for place, role, name in self.time_places:
            if record[place] == "" or record[place] in bad_times.get(role, ()):
                shown = f"{shortened(record[place])} in column {name!r}"
                if is_iso(record[place]):
                    return f"{shown} is not a number, unlike the times before it", "write all times in one way"
                return f"{shown} is not a time", TIMES
        return None


def shortened(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


def is_iso(text: str) -> bool:
    """Whether a text that was not read as a time is one; then the times around it are numbers."""
    return text.strip()[:4].isdigit() and parse_text(pl.Series([text], dtype=pl.String)).null_count() == 0
