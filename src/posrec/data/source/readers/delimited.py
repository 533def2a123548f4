"""Delimited text, a click a line: yoochoose, diginetica, retailrocket, csv, tsv and recbole."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from posrec.data.source.blocks import Block, blocks
from posrec.data.source.files import File
from posrec.data.source.readers.clicks import (
    Broken,
    ClickCollector,
    LineFormat,
    Row,
    add_block,
)
from posrec.data.source.readers.columns import (
    DELIMITERS,
    Columns,
    comma_separated,
    refuse_single_column,
)
from posrec.errors import InputError

NO_COLUMNS = Columns((), "", "")


@dataclass(frozen=True)
class DelimitedLines(LineFormat):
    """`names` and `columns` are those of a file, from its header.

    `fixed_names` are the columns of a format that needs no header; in a `typed` header each column
    is written `name:type`. `columns_of` chooses the columns of a click where the format says them.
    """

    delimiter: str  # that of --delimiter, if it is empty
    quoted: bool = False
    fixed_names: tuple[str, ...] | None = None
    typed: bool = False
    columns_of: Callable[[File, list[str]], Columns] | None = None
    names: Sequence[str] = ()
    columns: Columns = NO_COLUMNS

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        scan = pl.scan_csv(
            io.BytesIO(block.data),
            has_header=False,
            separator=self.delimiter,
            quote_char='"' if self.quoted else None,
            schema=dict.fromkeys(self.names, pl.String),
            missing_columns="insert",  # so that a short first line is reported like any other
        )
        return scan.select(self.columns.names).collect(), False

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        fields = self.split(text)
        if not any(map(str.strip, fields)):
            return []
        if len(fields) != len(self.names):
            between = DELIMITERS.get(self.delimiter, repr(self.delimiter))
            raise Broken(
                f"{len(fields)} fields where {len(self.names)} are expected, {between} between them"
            )
        values = dict(zip(self.names, fields, strict=True))
        return [[values[name] or None for name in self.columns.names]]

    def split(self, text: str) -> list[str]:
        """The fields of a record."""
        if not self.quoted:
            return text.rstrip("\r").split(self.delimiter)
        try:
            if text.count('"') % 2 == 0:
                return next(csv.reader([text], delimiter=self.delimiter), [])
        except (
            csv.Error
        ):  # a line break outside of quotes, if a stray quote has joined lines
            pass
        raise Broken("a double quote is never closed or is inside a field")


def read_text(
    format: DelimitedLines, files: Sequence[File], collector: ClickCollector
) -> None:
    if not format.delimiter:
        format = replace(format, delimiter=collector.options.delimiter or ",")
    for block in blocks(files, collector.progress, quoted=format.quoted):
        if block.first_line == 1:
            names, block = split_header(block, format)
            if len(names) == 1 and format.columns_of is None:
                refuse_single_column(
                    block.path, names[0], "\t" if format.typed else None
                )
            columns = (format.columns_of or collector.choose_columns)(block.path, names)
            format = replace(format, names=names, columns=columns)
        add_block(block, format, collector)


def split_header(block: Block, format: DelimitedLines) -> tuple[list[str], Block]:
    """The names of the columns, and the block without its header line."""
    number, (line, _, rest) = 1, block.data.partition(b"\n")
    while not line.strip() and rest:
        number, (line, _, rest) = number + 1, rest.partition(b"\n")
    fixed = format.fixed_names
    if fixed is not None and not line.lower().startswith(fixed[0].encode()):
        return list(fixed), block
    place = f"{block.path}, line {number}"
    below = Block(block.path, rest, number + 1)
    try:
        names = [name.strip() for name in format.split(line.decode("utf-8"))]
    except UnicodeDecodeError:
        raise InputError(f"{place}: not UTF-8 text; convert the file first") from None
    except Broken as error:
        raise InputError(f"{place}: {error.reason}") from None
    if fixed is not None:
        if len(names) != len(fixed) or not all(
            map(str.startswith, map(str.lower, names), [name[:4] for name in fixed])
        ):
            raise InputError(
                f"{place}: the header is {', '.join(names)}, but this format has {', '.join(fixed)}; use --format csv"
            )
        return list(fixed), below
    if format.typed and len(names) > 1:
        names = [name.partition(":")[0] for name in names]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{place}: the column {repeated!r} appears twice in the header; rename one"
        )
    return names, below


def diginetica_columns(path: File, names: list[str]) -> Columns:
    for session, item in (("sessionId", "itemId"), ("session_id", "item_id")):
        if {session, item, "timeframe", "eventdate"} <= set(names):
            return Columns((session,), item, "timeframe", date="eventdate")
    raise InputError(
        f"{path}, line 1: not a Diginetica header, which has sessionId;itemId;timeframe;eventdate "
        f"(or session_id;item_id;...) separated by semicolons; it has {comma_separated(names)}"
    )


# `yoochoose-clicks.dat` of the RecSys Challenge 2015, which has no header.
YOOCHOOSE = DelimitedLines(
    ",", fixed_names=("session", "timestamp", "item", "category")
)
# `train-item-views.csv` of the CIKM Cup 2016. `timeframe` is the number of milliseconds since the
# session began, and `eventdate` is a day; the time of day is not recorded. As in the field's
# preprocessing, a session's day is that of its last-read click, whatever its `timeframe`, which
# alone orders its clicks: `place_at_end_of_day`, data/prepare/steps.py
DIGINETICA = DelimitedLines(";", columns_of=diginetica_columns)
# With a header, and any delimiter; RetailRocket's `events.csv`, a log of visitors, is one.
CSV = DelimitedLines("", quoted=True)
TSV = DelimitedLines("\t", quoted=True)
RECBOLE = DelimitedLines("\t", typed=True)  # RecBole's atomic `.inter` files
