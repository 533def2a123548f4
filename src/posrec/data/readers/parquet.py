"""Parquet tables with any column types, read batch by batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path

import polars as pl

from posrec.data.readers.clicks import BadTimes, ClickCollector, ParsedLog, id_fault
from posrec.data.readers.columns import ChosenColumns, LogOptions, choose_columns
from posrec.data.sources import is_compressed, read_whole
from posrec.errors import InputError
from posrec.progress import Progress

BATCH_ROWS = 1_000_000
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # damage can also end in a panic


def read_parquet(files: Sequence[Path], options: LogOptions, progress: Progress) -> ParsedLog:
    """Ids may be numbers or text; times numbers, text or datetimes."""
    collector = ClickCollector(progress, options.events, options.time_unit)
    by_user = False
    frames = [(path, scan_parquet(path)) for path in files]
    total = sum(frame.select(pl.len()).collect().item() for _, frame in frames)
    for path, frame in frames:
        chosen = choose_columns(path, frame.collect_schema().names(), options, progress)
        by_user |= chosen.by_user
        columns = {role: pl.col(name).alias(role) for role, name in chosen.columns.used().items()}
        # Tables that passed through pandas write missing numbers as NaN.
        schema = frame.select(columns.values()).collect_schema()
        rows = frame.select(column.fill_nan(None) if schema[role].is_float() else column
                            for role, column in columns.items())  # fmt: skip
        first = 0
        try:
            for batch in rows.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True):
                collector.add(batch, partial(raise_for_row, path, chosen, first, batch))
                first += len(batch)
                progress.update("Reading", collector.rows, total)
        except POLARS_ERRORS as error:
            raise InputError(
                f"{path}, after row {first}: can't be read ({first_line(error)}); the file is damaged, or a column "
                "holds something other than ids, numbers or text"
            ) from None
    return collector.parsed_log(by_user)


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


def raise_for_row(
    path: Path, chosen: ChosenColumns, first: int, batch: pl.DataFrame, row: int | None, _: BadTimes
) -> None:
    """Raise for a bad row of a batch that begins at row `first` of the file."""
    if row is None:
        return
    values = batch.row(row, named=True)
    where = f"{path}, row {first + row + 1}"
    for role in ("session", "item"):
        if fault := id_fault(values[role]):
            name = getattr(chosen.columns, role)
            raise InputError(f"{where}: the {role} (column {name!r}) {fault}; fix or remove the row")
    raise InputError(
        f"{where}: {values['time']!r} in column {chosen.columns.time!r} is not a time; fix or remove the row"
    )
