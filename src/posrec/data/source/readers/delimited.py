"""Delimited text, a click a line: yoochoose, diginetica, retailrocket, csv, tsv and recbole."""

import csv
import io
from collections.abc import Sequence
from contextlib import suppress
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
    as_text,
)
from posrec.data.source.readers.columns import DELIMITERS, Columns, comma_separated
from posrec.errors import InputError

NO_COLUMNS = Columns((), "", "")


@dataclass(frozen=True)
class DelimitedLines(LineFormat):
    """A format and, once its header is read, the `names` and `columns` of a file."""

    delimiter: str  # that of --delimiter, if it is empty
    quoted: bool = False
    fixed_names: Sequence[str] = ()  # of a format that needs no header
    typed: bool = False  # the header has name:type for each column
    known_columns: Sequence[Columns] = ()  # one of these are the columns of a click
    names: Sequence[str] = ()
    columns: Columns = NO_COLUMNS

    def parse(self, block: Block) -> pl.DataFrame:
        scan = pl.scan_csv(
            io.BytesIO(block.data),
            has_header=False,
            separator=self.delimiter,
            quote_char='"' if self.quoted else None,
            schema=dict.fromkeys(self.names, pl.String),
            missing_columns="insert",  # so that a short first line is reported like any other
        )
        return scan.select(self.columns.names).collect()

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        fields = self.split(text)
        if not any(map(str.strip, fields)):
            return []
        if len(fields) != len(self.names):
            delimiter = DELIMITERS.get(self.delimiter, repr(self.delimiter))
            raise Broken(
                f"{len(fields)} fields where {len(self.names)} are expected, "
                f"{delimiter} between them"
            )
        values = dict(zip(self.names, fields, strict=True))
        return [[values[name] or None for name in self.columns.names]]

    def split(self, text: str) -> list[str]:
        if not self.quoted:
            return text.rstrip("\r").split(self.delimiter)
        # A stray quote that has joined lines leaves a line break outside of quotes: csv.Error.
        with suppress(csv.Error):
            if text.count('"') % 2 == 0:
                return next(csv.reader([text], delimiter=self.delimiter), [])
        raise Broken("a double quote is never closed or is inside a field")

    def read(self, files: Sequence[File], collector: ClickCollector) -> None:
        format = self
        if not self.delimiter:
            format = replace(self, delimiter=collector.options.delimiter or ",")
        for block in blocks(files, collector.progress, quoted=self.quoted):
            if block.first_line == 1:
                names, block = format.split_header(block)
                columns = format.choose_columns(block.path, names, collector)
                format = replace(format, names=names, columns=columns)
            add_block(block, format, collector)

    def choose_columns(
        self, path: File, names: list[str], collector: ClickCollector
    ) -> Columns:
        for columns in self.known_columns:
            if set(columns.names) <= set(names):
                return columns
        if self.known_columns:
            raise InputError(
                f"{path}, line 1: not a Diginetica header, which has "
                "sessionId;itemId;timeframe;eventdate (or session_id;item_id;...) separated by "
                f"semicolons; it has {comma_separated(names)}"
            )
        if len(names) == 1:
            advice = self.advice_on_delimiter(names[0])
            raise InputError(f"{path}, line 1: only one column, {names[0]!r}; {advice}")
        return collector.choose_columns(path, names)

    def advice_on_delimiter(self, header: str) -> str:
        delimiter = next((sign for sign in DELIMITERS if sign in header), None)
        if delimiter is None:
            return "a log needs a session, an item and a time"
        verb = "this format needs a tab, so use --format csv" if self.typed else "pass"
        separator = DELIMITERS[delimiter]
        return f"its fields look separated by {separator}: {verb} --delimiter {delimiter!r}"

    def split_header(self, block: Block) -> tuple[list[str], Block]:
        """The names of the columns, and the block without its header line."""
        number = 1
        line, _, rest = block.data.partition(b"\n")
        while not line.strip() and rest:
            number += 1
            line, _, rest = rest.partition(b"\n")
        fixed = list(self.fixed_names)
        if fixed and not line.lower().startswith(fixed[0].encode()):
            return fixed, block
        try:
            names = self.header_names(as_text(line))
        except Broken as fault:
            raise fault.at(block.path, number) from None
        return fixed or names, Block(block.path, rest, number + 1)

    def header_names(self, header: str) -> list[str]:
        names = [name.strip() for name in self.split(header)]
        if self.fixed_names:
            beginnings = [name[:4] for name in self.fixed_names]
            if [name[:4].lower() for name in names] != beginnings:
                raise Broken(
                    f"the header is {', '.join(names)}, but this format has "
                    f"{', '.join(self.fixed_names)}",
                    "use --format csv",
                )
        elif self.typed and len(names) > 1:
            names = [name.partition(":")[0] for name in names]
        for name in names:
            if names.count(name) > 1:
                raise Broken(
                    f"the column {name!r} appears twice in the header", "rename one"
                )
        return names


# `yoochoose-clicks.dat` of the RecSys Challenge 2015, which has no header.
YOOCHOOSE = DelimitedLines(
    ",",
    fixed_names=("session", "timestamp", "item", "category"),
    known_columns=[Columns(("session",), "item", "timestamp")],
)
# `train-item-views.csv` of the CIKM Cup 2016: `timeframe` is the number of milliseconds since the
# session began, `eventdate` a day. `place_at_end_of_day`, data/prepare/steps.py, joins them.
DIGINETICA = DelimitedLines(
    ";",
    known_columns=[
        Columns(("sessionId",), "itemId", "timeframe", date="eventdate"),
        Columns(("session_id",), "item_id", "timeframe", date="eventdate"),
    ],
)
# With a header, and any delimiter; RetailRocket's `events.csv`, a log of visitors, is one.
CSV = DelimitedLines("", quoted=True)
TSV = DelimitedLines("\t", quoted=True)
RECBOLE = DelimitedLines("\t", typed=True)  # RecBole's atomic `.inter` files
