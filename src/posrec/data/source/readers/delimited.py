"""Formats of delimited text, a click in each line: yoochoose, diginetica, retailrocket, csv, tsv and recbole."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl

from posrec.data.source.blocks import Block, blocks
from posrec.data.source.files import File
from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.clicks import BadTimes, ClickCollector, Fault, LineFormat, add_block, find_fault
from posrec.data.source.readers.columns import DELIMITERS, Columns, comma_separated, refuse_single_column
from posrec.errors import InputError


class Record(NamedTuple):
    """The fields of a line, or of several lines where a quoted field contains line breaks."""

    line: int  # of the file; the first, if there are several
    lines: int
    fields: list[str]


@dataclass(frozen=True)
class TextLayout:
    """How a line is split into fields.

    `names` are the columns of a format without a header line (a line that starts with the first name is still taken
    for a header and skipped); in a `typed` header each column is written `name:type`. `columns_of` chooses the columns
    of a click, given the file and its header, where neither the user nor their names say which they are.
    """

    delimiter: str  # that of --delimiter, if it is empty
    quote: str | None = None
    names: tuple[str, ...] | None = None
    typed: bool = False
    columns_of: Callable[[File, list[str]], Columns] | None = None

    def records(self, block: Block) -> Iterator[Record]:
        """Slow, for headers and for finding the lines that are wrong."""
        try:
            lines = io.StringIO(block.data.decode("utf-8"), newline="")
        except UnicodeDecodeError:
            raise InputError(f"{block.path}, line {block.first_line}: not UTF-8 text; convert the file first") from None
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


def read_text(layout: TextLayout, files: Sequence[File], collector: ClickCollector) -> None:
    """Read every file into `collector`; its columns are chosen from its header."""
    if not layout.delimiter:
        layout = replace(layout, delimiter=collector.options.delimiter)
    format = DelimitedLines(layout, [], Columns((), "", ""), collector.events.read)
    for block in blocks(files, collector.progress, quoted=layout.quote is not None):
        if block.first_line == 1:
            names, block = split_header(block, layout)
            if len(names) == 1 and layout.columns_of is None:
                refuse_single_column(block.path, names[0], "\t" if layout.typed else None)
            columns = (layout.columns_of or collector.choose_columns)(block.path, names)
            format = replace(format, names=names, columns=columns)
        add_block(block, format, collector)


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
class DelimitedLines(LineFormat):
    """The fields `names` in each line; `events` are the kinds that are read."""

    layout: TextLayout
    names: list[str]
    columns: Columns
    events: Sequence[str]
    advice = "the lines can't be separated; look for a double quote that is never closed or is inside a field"

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        scan = pl.scan_csv(
            io.BytesIO(block.data),
            has_header=False,
            separator=self.layout.delimiter,
            quote_char=self.layout.quote,
            schema=dict.fromkeys(self.names, pl.String),
            missing_columns="insert",  # so that a short first line is reported like any other
        )
        return scan.select(self.columns.select()).collect(), False

    def find_broken(self, block: Block, bad_times: BadTimes) -> Iterator[BadLine]:
        """Where a broken record has several lines, only its first is reported: a stray quote may have joined them."""
        lines = block.data.split(b"\n")
        found = False
        for record in self.layout.records(block):
            if fault := self.record_fault(record.fields, bad_times):
                found = True
                yield bad_line(block, lines, record, *fault)
        if not found and not bad_times and self.layout.quote is not None:
            for record in self.layout.records(block):
                first = record.line - block.first_line
                if b"\n".join(lines[first : first + record.lines]).count(b'"') % 2:
                    yield bad_line(block, lines, record, "a double quote is never closed or is inside a field")

    def record_fault(self, fields: list[str], bad_times: BadTimes) -> Fault | None:
        """What is wrong with the fields of a line; None if nothing is."""
        if not any(map(str.strip, fields)):
            return None
        if len(fields) != len(self.names):
            between = DELIMITERS.get(self.layout.delimiter, repr(self.layout.delimiter))
            return f"{len(fields)} fields where {len(self.names)} are expected, {between} between them", ""
        values = dict(zip(self.names, fields, strict=True))
        return find_fault(values.__getitem__, self.columns, bad_times, self.events)


def bad_line(block: Block, lines: list[bytes], record: Record, reason: str, advice: str = "") -> BadLine:
    text = lines[record.line - block.first_line].decode("utf-8", errors="replace").rstrip("\r")
    return BadLine(str(block.path), record.line, reason, text, advice)


def diginetica_columns(path: File, names: list[str]) -> Columns:
    for session, item in (("sessionId", "itemId"), ("session_id", "item_id")):
        if {session, item, "timeframe", "eventdate"} <= set(names):
            return Columns((session,), item, "timeframe", date="eventdate")
    raise InputError(
        f"{path}, line 1: not a Diginetica header, which has sessionId;itemId;timeframe;eventdate "
        f"(or session_id;item_id;...) separated by semicolons; it has {comma_separated(names)}"
    )


# `yoochoose-clicks.dat` of the RecSys Challenge 2015, which has no header.
YOOCHOOSE = TextLayout(",", names=("session", "timestamp", "item", "category"))
# `train-item-views.csv` of the CIKM Cup 2016. `timeframe` is the number of milliseconds since the session began, and
# `eventdate` is a day; the time of day is not recorded. As in the field's preprocessing, a session's day is that of its
# last-read click, whatever its `timeframe`, which alone orders its clicks: `place_at_end_of_day`, data/prepare/steps.py
DIGINETICA = TextLayout(";", columns_of=diginetica_columns)
CSV = TextLayout("", quote='"')  # any delimiter, with a header; RetailRocket's `events.csv`, a log of visitors, is one
TSV = TextLayout("\t", quote='"')
RECBOLE = TextLayout("\t", typed=True)  # RecBole's atomic `.inter` files
