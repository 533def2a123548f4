"""Delimited text -> click frame, block by block; errors name the line that is wrong."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posrec.data.readers.clicks import BadTimes, ClickCollector, RaiseForRow, id_fault
from posrec.data.readers.columns import DELIMITERS, Columns
from posrec.data.readers.times import parse_text
from posrec.data.sources import Block, blocks, decode
from posrec.errors import InputError
from posrec.progress import Progress


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

    def records(self, block: Block) -> Iterator[tuple[int, list[str]]]:
        """(line of the file, fields); slow, for headers and for finding the line that is wrong."""
        lines = io.StringIO(decode(block), newline="")
        if self.quote is None:
            reader = csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote)
        first_line = block.first_line
        try:
            for record in reader:
                if record:
                    yield first_line, record
                first_line = block.first_line + reader.line_num
        except csv.Error as error:
            line = block.first_line + max(reader.line_num, 1) - 1
            raise InputError(f"{block.path}, line {line}: not delimited text ({error})") from None


def read_text(
    files: Sequence[Path],
    layout: TextLayout,
    columns_of: Callable[[Path, list[str]], Columns],
    collector: ClickCollector,
    progress: Progress,
) -> None:
    """Read every file into `collector`; `columns_of` chooses the columns from a file's header."""
    names: list[str] = []
    columns = Columns("", "", "")
    for block in blocks(files, progress, quoted=layout.quote is not None):
        if block.first_line == 1:
            names, block = split_header(block, layout)
            columns = columns_of(block.path, names)
        if not block.data[:1024].strip() and not block.data.strip():
            continue
        raise_for_row = line_finder(block, layout, names, columns, collector.events)
        collector.add(parse_block(block, layout, names, columns, raise_for_row), raise_for_row)


def split_header(block: Block, layout: TextLayout) -> tuple[list[str], Block]:
    """The names of the columns, and the block without its header line."""
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
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{block.path}, line 1: the column {repeated!r} appears twice in the header; rename one")
    return names, below


def parse_block(
    block: Block, layout: TextLayout, names: list[str], columns: Columns, raise_for_row: RaiseForRow
) -> pl.DataFrame:
    scan = pl.scan_csv(
        io.BytesIO(block.data),
        has_header=False,
        separator=layout.delimiter,
        quote_char=layout.quote,
        schema=dict.fromkeys(names, pl.String),
        missing_columns="insert",  # so that a short first line is reported like any other
    )
    try:
        return scan.select(pl.col(name).alias(role) for role, name in columns.used().items()).collect()
    except pl.exceptions.PolarsError as error:
        raise_for_row(0, {})
        raise unparsable(block) from error


def line_finder(
    block: Block, layout: TextLayout, names: list[str], columns: Columns, events: Sequence[str]
) -> RaiseForRow:
    """A function that finds the first wrong line of the block and raises an error that names it."""
    between = DELIMITERS.get(layout.delimiter, repr(layout.delimiter))

    def raise_for_row(row: int | None, bad_times: BadTimes) -> None:
        for line, record in layout.records(block):
            where = f"{block.path}, line {line}"
            if not any(field.strip() for field in record):
                continue
            if len(record) != len(names):
                raise InputError(
                    f"{where}: {len(record)} fields where {len(names)} are expected, {between} between them; "
                    "fix or remove the line"
                )
            fields = dict(zip(names, record, strict=True))
            if columns.event is None or not events or fields[columns.event] in events:
                check_line(where, fields, columns, bad_times)
        if row is not None:
            raise unparsable(block)

    return raise_for_row


def unparsable(block: Block) -> InputError:
    """The error for a block that can't be parsed although each of its lines looks right; stray quotes cause that."""
    last = block.first_line + block.data.rstrip().count(b"\n")
    return InputError(
        f"{block.path}, between lines {block.first_line} and {last}: the lines can't be separated; "
        "look for a double quote that is never closed or is inside a field"
    )


def check_line(where: str, fields: dict[str, str], columns: Columns, bad_times: BadTimes) -> None:
    """Raise if this line is wrong."""
    for role in ("session", "item"):
        name = getattr(columns, role)
        if fault := id_fault(fields[name]):
            raise InputError(f"{where}: the {role} (column {name!r}) {fault}; fix or remove the line")
    for role in ("time", "date"):
        name = getattr(columns, role)
        if name is not None and (fields[name] == "" or fields[name] in bad_times.get(role, ())):
            fault = "is not a time; write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds"
            if parse_text(pl.Series([fields[name]])).null_count() == 0:
                fault = "is not a number, unlike the times before it; write all of them in one way"
            raise InputError(f"{where}: {fields[name]!r} in column {name!r} {fault}")
