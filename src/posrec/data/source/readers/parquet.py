"""Parquet tables with any column types, read in batches; and tables in memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from posrec.data.source.files import (
    ALLOWED_LINES,
    LINES_PER_BYTE,
    File,
    is_compressed,
    local_copy,
    read_whole,
)
from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.clicks import ClickCollector, find_fault
from posrec.data.source.readers.columns import Columns
from posrec.errors import InputError, first_line, plural

BATCH_ROWS = 1_000_000
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # a missing value as a folder of Hive and Spark
# Damage can also end in a panic.
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


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
    """Add the rows of a table, the `number`-th from 0 of `tables`, batch by batch."""
    frame = frame.select(**leaves(frame.collect_schema()))
    columns = table_columns(name, frame, collector)
    with parquet_errors(name):
        length = count_rows(frame)
    # Tables that passed through pandas write missing numbers as NaN.
    rows = frame.select(columns.names).with_columns(pl.selectors.float().fill_nan(None))
    row = 0
    try:
        for batch in rows.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True):
            checked = collector.check(batch, columns)
            bad = (
                (row + index + 1, batch.row(index, named=True)) for index in checked.bad
            )
            collector.keep(checked, str(name), bad_rows(bad, name, columns))
            row += len(batch)
            collector.progress.update("Reading", number + row / max(length, 1), tables)
    except POLARS_ERRORS as error:
        raise InputError(
            f"{name}, after row {row}: can't be read ({first_line(error)}); the file is damaged, "
            "or a column holds something other than ids, numbers or text"
        ) from None
    # polars reads nothing of a row group whose columns have another length.
    if row != length:
        raise InputError(
            f"{name} declares {plural(length, 'row')}, and {row:,} can be read; it is damaged"
        )


def table_columns(
    name: File | str, frame: pl.LazyFrame, collector: ClickCollector
) -> Columns:
    types = frame.collect_schema()
    columns = collector.choose_columns(name, types.names())
    if columns.event is None or collector.options.needs_events:
        return columns
    if types[columns.event].is_nested():
        # A list or struct that only has the name of a column of kinds.
        collector.events.column = None
        return replace(columns, event=None)
    return columns


def leaves(
    types: Mapping[str, Any], at: Callable[[str], pl.Expr] = pl.col
) -> dict[str, pl.Expr]:
    """Every column by its name, or by its path in structs: `ctx.sid`."""
    found: dict[str, pl.Expr] = {}
    for name, type in types.items():
        if isinstance(type, pl.Struct):
            below = leaves(type.to_schema(), at(name).struct.field)
            found |= {
                f"{name}.{path}": expression for path, expression in below.items()
            }
        else:
            found[name] = at(name)
    return found


def count_rows(frame: pl.LazyFrame) -> int:
    return int(frame.select(pl.len()).collect().item())


@contextmanager
def open_parquet(path: File) -> Iterator[pl.LazyFrame]:
    """A lazy table. A remote file is copied, a compressed one read whole."""
    with local_copy(path) as copy:
        yield scan_parquet(copy).with_columns(**folder_columns(path))


def scan_parquet(path: Path) -> pl.LazyFrame:
    packed = BytesIO(read_whole(path)) if is_compressed(path) else None
    return scan_bounded(path, packed or path, path.stat().st_size)


def scan_bounded(name: File, source: BytesIO | Path, size: int) -> pl.LazyFrame:
    """A lazy table, if it does not have far more rows than bytes."""
    with parquet_errors(name):
        frame = pl.scan_parquet(source, glob=False, hive_partitioning=False)
        frame.collect_schema()
        rows = count_rows(frame)
    if rows > max(ALLOWED_LINES, LINES_PER_BYTE * size):
        raise InputError(
            f"{name} has {rows:,} rows in {size:,} bytes, as no log does; if you trust it, "
            "write it as CSV"
        )
    return frame


def folder_columns(path: File) -> dict[str, pl.Expr]:
    """Columns that Hive and Spark write as folders: event=view/date=2026-01-01/part-0.parquet."""
    columns = {}
    for folder in path.parts[:-1]:
        name, sign, text = folder.partition("=")
        if name and sign:
            value = None if text == NO_VALUE else unquote(text)
            columns[name] = pl.lit(value, dtype=pl.String)
    return columns


@contextmanager
def parquet_errors(path: File | str) -> Iterator[None]:
    try:
        yield
    except POLARS_ERRORS as error:
        raise InputError(
            f"{path} is not a Parquet file, or is cut short or damaged ({first_line(error)})"
        ) from None


def bad_rows(
    rows: Iterable[tuple[int, dict[str, Any]]], name: File | str, columns: Columns
) -> Iterator[BadLine]:
    """What is wrong with these rows; one without any value is like a blank line."""
    for number, row in rows:
        if any(value is not None for value in row.values()):
            fault = find_fault(row, columns)
            text = str(row)
            yield BadLine(str(name), number, fault.reason, text, fault.advice, "row")
