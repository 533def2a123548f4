"""Parquet tables with any column types, read batch by batch; and tables that are in memory already."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import polars as pl

from posrec.data.readers.bad_lines import BadLine
from posrec.data.readers.clicks import ClickCollector, ParsedLog, id_fault, session_id
from posrec.data.readers.columns import Columns, choose_columns
from posrec.data.readers.options import LogOptions
from posrec.data.readers.store import ClickStore
from posrec.data.sources import is_compressed, read_whole
from posrec.errors import InputError
from posrec.progress import Progress

BATCH_ROWS = 1_000_000
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # damage can also end in a panic


def read_parquet(
    files: Sequence[Path], options: LogOptions, progress: Progress, store: ClickStore | None = None
) -> ParsedLog:
    """Ids may be numbers or text; times numbers, text or datetimes."""
    return read_frames([(path, scan_parquet(path)) for path in files], options, progress, store)


def read_frames(
    frames: Sequence[tuple[Path | str, pl.LazyFrame]],
    options: LogOptions,
    progress: Progress,
    store: ClickStore | None = None,
) -> ParsedLog:
    """Tables, each with the path or name that messages give it."""
    collector = ClickCollector(progress, options, store=store)
    by_user, before = False, 0
    total = sum(frame.select(pl.len()).collect().item() for _, frame in frames)
    for path, frame in frames:
        types = frame.collect_schema()
        columns = choose_columns(path, types.names(), options, progress)
        if columns.event is not None and types[columns.event].is_nested() and not options.needs_events:
            columns = replace(columns, event=None)  # a list or struct that only has the name of a column of kinds
        collector.events.column = columns.event
        by_user |= columns.by_user
        used = [*columns.session, *columns.one_each().values()]
        # Tables that passed through pandas write missing numbers as NaN.
        rows = frame.select(pl.col(name).fill_nan(None) if types[name].is_float() else pl.col(name) for name in used)
        first = 0
        try:
            for batch in rows.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True):
                add_batch(batch, path, columns, first, collector)
                first += len(batch)
                progress.update("Reading", before + first, total)
        except POLARS_ERRORS as error:
            raise InputError(
                f"{path}, after row {first}: can't be read ({first_line(error)}); the file is damaged, or a column "
                "holds something other than ids, numbers or text"
            ) from None
        before += first
    return collector.parsed_log(by_user)


def add_batch(batch: pl.DataFrame, path: Path | str, columns: Columns, first: int, collector: ClickCollector) -> None:
    """Add the rows of a batch that begins at row `first` of the table."""
    others = (pl.col(name).alias(role) for role, name in columns.one_each().items())
    checked = collector.check(batch.select(session_id(columns.session).alias("session"), *others))
    if checked.bad_rows:
        collector.leave_out(bad_rows(batch, path, columns, first, checked.bad_rows), checked)
    collector.keep(checked)


def scan_parquet(path: Path) -> pl.LazyFrame:
    """Open a table without reading its rows. A compressed file has to be read whole."""
    with parquet_errors(path):
        frame = pl.scan_parquet(BytesIO(read_whole(path)) if is_compressed(path) else path, glob=False)
        frame.collect_schema()
    return frame


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Report a damaged table as an InputError that names it."""
    try:
        yield
    except POLARS_ERRORS as error:
        raise InputError(f"{path} is not a Parquet file, or is cut short or damaged ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def bad_rows(
    batch: pl.DataFrame, path: Path | str, columns: Columns, first: int, numbers: list[int]
) -> Iterator[BadLine]:
    for number in numbers:
        values = batch.row(number, named=True)
        reason = f"{values[columns.time]!r} in column {columns.time!r} is not a time"
        for role, name in columns.ids():
            if fault := id_fault(values[name]):
                reason = f"the {role} (column {name!r}) {fault}"
                break
        yield BadLine(str(path), first + number + 1, reason, str(values), "fix or remove the row", "row")
