"""Parquet tables with any column types, read in batches; and tables in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import polars as pl

from posrec.data.source.files import File, is_compressed, local_copy, read_whole
from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.clicks import ClickCollector, find_fault
from posrec.data.source.readers.columns import Columns
from posrec.errors import InputError, first_line, plural

BATCH_ROWS = 1_000_000
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # how Hive and Spark write a missing value as the name of a folder
POLARS_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)  # damage can also end in a panic


def read_parquet(files: Sequence[File], collector: ClickCollector) -> None:
    """Ids may be numbers or text; times numbers, text or datetimes."""
    for number, path in enumerate(files):
        with open_parquet(path) as frame:
            read_table(path, frame, collector, number, len(files))


def read_table(
    name: File | str,
    frame: pl.LazyFrame,
    collector: ClickCollector,
    number: int = 0,
    tables: int = 1,
) -> None:
    """Add the rows of a table, `number` of so many, batch by batch."""
    types = frame.collect_schema()
    columns = collector.choose_columns(name, types.names())
    if (
        columns.event is not None
        and types[columns.event].is_nested()
        and not collector.options.needs_events
    ):
        collector.events.column = (
            None  # a list or struct that only has the name of a column of kinds
        )
        columns = replace(columns, event=None)
    with parquet_errors(name):
        length = count_rows(frame)
    # Tables that passed through pandas write missing numbers as NaN.
    rows = frame.select(
        pl.col(column).fill_nan(None) if types[column].is_float() else pl.col(column)
        for column in columns.names
    )
    first = 0
    try:
        for batch in rows.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True):
            checked = collector.check(batch.select(columns.select()))
            collector.keep(checked, bad_rows(batch, name, columns, first, checked.bad))
            first += len(batch)
            collector.progress.update(
                "Reading", number + first / max(length, 1), tables
            )
    except POLARS_ERRORS as error:
        raise InputError(
            f"{name}, after row {first}: can't be read ({first_line(error)}); the file is damaged, or a column "
            "holds something other than ids, numbers or text"
        ) from None
    if (
        first != length
    ):  # polars reads nothing of a row group whose columns have another length
        raise InputError(
            f"{name} declares {plural(length, 'row')}, and {first:,} can be read; it is damaged"
        )


def count_rows(frame: pl.LazyFrame) -> int:
    return int(frame.select(pl.len()).collect().item())


@contextmanager
def open_parquet(path: File) -> Iterator[pl.LazyFrame]:
    """A table that is not read yet. A remote file is copied, a compressed one read whole."""
    with local_copy(path) as copy:
        yield scan_parquet(copy).with_columns(**folder_columns(path))


def scan_parquet(path: Path) -> pl.LazyFrame:
    with parquet_errors(path):
        frame = pl.scan_parquet(
            BytesIO(read_whole(path)) if is_compressed(path) else path,
            glob=False,
            hive_partitioning=False,
        )
        frame.collect_schema()
    return frame


def folder_columns(path: File) -> dict[str, pl.Expr]:
    """The columns that Hive and Spark write as folders:
    event=view/date=2026-01-01/part-0.parquet."""
    pairs = [part.partition("=") for part in path.parts[:-1] if "=" in part]
    return {
        name: pl.lit(None if value == NO_VALUE else unquote(value), dtype=pl.String)
        for name, _, value in pairs
        if name
    }


@contextmanager
def parquet_errors(path: File | str) -> Iterator[None]:
    """Report a damaged table as an InputError that names it."""
    try:
        yield
    except POLARS_ERRORS as error:
        raise InputError(
            f"{path} is not a Parquet file, or is cut short or damaged ({first_line(error)})"
        ) from None


def bad_rows(
    batch: pl.DataFrame,
    path: File | str,
    columns: Columns,
    first: int,
    numbers: list[int],
) -> Iterator[BadLine]:
    """What is wrong with these rows of a batch that begins at row `first`."""
    for number in numbers:
        values = batch.row(number, named=True)
        if any(
            value is not None for value in values.values()
        ):  # otherwise it is like a blank line
            fault = find_fault(values, columns)
            yield BadLine(
                str(path),
                first + number + 1,
                fault.reason,
                str(values),
                fault.advice,
                "row",
            )
