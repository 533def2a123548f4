"""A log to read: files of a format, named or concluded, standard input, or a table in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from posrec.data.source.files import File, find_files, read_start, with_standard_input
from posrec.data.source.readers import READERS, Reader
from posrec.data.source.readers.clicks import ClickStore, ParsedLog
from posrec.data.source.readers.options import ANY_LOG, LogOptions
from posrec.data.source.readers.parquet import read_table
from posrec.data.source.sniff import Conclusion, detect_format
from posrec.errors import InputError, first_line
from posrec.progress import Progress

TABLE = "table"  # the format of a table in memory
# How RecBole and session-rec name the two parts of a split, by format.
SPLIT_NAMES = {
    "recbole-prefixes": (".train.", ".test."),
    "tsv": ("_train_full.", "_test."),
}


@dataclass(frozen=True)
class ClickLog:
    """A log that can be read: `files`, or a `table` in memory."""

    format: str
    options: LogOptions
    files: Sequence[File] = ()
    table: pl.LazyFrame | None = None
    concluded: bool = False  # the format was not named

    @property
    def name(self) -> str:
        return TABLE if self.table is not None else str(self.files[0])

    def test_part_beside(self) -> Path | None:
        """The test part of a split by RecBole or session-rec of which this is the training part."""
        train = self.files[0] if len(self.files) == 1 else None
        names = SPLIT_NAMES.get(self.format)
        if names is None or not isinstance(train, Path) or names[0] not in train.name:
            return None
        test = train.with_name(train.name.replace(*names))
        return test if test.is_file() else None

    def read(
        self, progress: Progress, store: ClickStore, files: Sequence[File] | None = None
    ) -> ParsedLog:
        """Add the clicks of the log, or of some of its files, to `store`."""
        if (table := self.table) is None:
            read = READERS[self.format]
            return read(
                self.files if files is None else files,
                self.options,
                progress,
                store,
                self.files,
            )
        reader = Reader(
            lambda _, collector: read_table(TABLE, table, collector), ANY_LOG
        )
        return reader((), self.options, progress, store)


@contextmanager
def open_log(
    source: Any, format: str | None, options: LogOptions, progress: Progress
) -> Iterator[ClickLog]:
    """Find what `source` names, and conclude the format if it is None."""
    if format is not None and format not in READERS:
        raise InputError(
            f"format {format!r} is not known; choose one of {', '.join(READERS)}"
        )
    if not is_path(source):
        if format is not None:
            raise InputError(
                f"a table in memory has no format; leave out format={format!r}"
            )
        options.check(TABLE, ANY_LOG)
        yield ClickLog(TABLE, options, table=as_frame(source))
        return
    if format is not None:
        options.check(format, READERS[format].options)  # before anything is read
    with with_standard_input(source) as named:
        files = without_empty_start(find_files(named))
        concluded = format is None
        if format is None:
            found = detect_format(files[0])
            if options.delimiter is not None and found.format in ("csv", "tsv"):
                found = Conclusion(
                    "csv", "text with the delimiter that was given", options.delimiter
                )
            options = replace(options, delimiter=found.delimiter or options.delimiter)
            format = found.format
            progress.message(
                f"{files[0].name}: read as {format}, {found.because} (pass --format if that is wrong)"
            )
        elif (
            format == "recbole" and detect_format(files[0]).format == "recbole-prefixes"
        ):
            format = "recbole-prefixes"
        options.check(format, READERS[format].options)
        yield ClickLog(format, options, files, concluded=concluded)


def without_empty_start(files: list[File]) -> list[File]:
    """Without empty files at the start: the format is concluded from the first."""
    with_data = next(
        (number for number, path in enumerate(files) if read_start(path, 1)), 0
    )
    return files[with_data:]


def is_path(source: Any) -> bool:
    """Whether `source` names files, rather than being a table."""
    return isinstance(source, str | Path) or (
        isinstance(source, Sequence)
        and all(isinstance(name, str | Path) for name in source)
    )


def as_frame(table: Any) -> pl.LazyFrame:
    if isinstance(table, pl.LazyFrame):
        return table
    try:
        if (
            type(table).__module__.partition(".")[0] == "pandas"
        ):  # before 2.2 it has no Arrow interface
            return pl.from_pandas(table).lazy()
        if hasattr(table, "__arrow_c_stream__"):
            return pl.DataFrame(table).lazy()
    except ModuleNotFoundError as error:
        raise InputError(
            f"a pandas table needs the package {error.name}: pip install {error.name}"
        ) from None
    except (ValueError, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"the table can't be read ({first_line(error)}); give each column one type"
        ) from None
    raise InputError(
        f"give a path, a list of paths, or a polars, pandas or Arrow table, not {type(table).__module__}."
        f"{type(table).__name__}"
    )
