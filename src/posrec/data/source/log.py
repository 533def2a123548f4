"""A log to read: files of a format, named or concluded, standard input, or a table in memory."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from posrec.data.source.file_columns import options_by_file
from posrec.data.source.files import File, find_files, read_start, with_standard_input
from posrec.data.source.readers import READERS
from posrec.data.source.readers.clicks import ClickCollector, ClickStore, ParsedLog
from posrec.data.source.readers.options import ANY_LOG, LogOptions
from posrec.data.source.readers.parquet import read_table
from posrec.data.source.sniff import Conclusion, detect_format
from posrec.errors import InputError, first_line
from posrec.progress import Progress

OPENED_AT_ONCE = 8  # files whose formats are concluded
TABLE = "table"  # the format of a table in memory
# How RecBole and session-rec name the two files of a split, by format.
SPLIT_NAMES = {
    "recbole-prefixes": (".train.", ".test."),
    "tsv": ("_train_full.", "_test."),
}


@dataclass(frozen=True)
class ClickLog:
    format: str
    options: LogOptions
    files: list[File] = field(default_factory=list)
    table: pl.LazyFrame | None = None
    concluded: bool = False  # the format was not named
    # The logs that it consists of, if its files are not read in one way.
    layouts: Sequence["ClickLog"] = ()

    @property
    def parts(self) -> Sequence["ClickLog"]:
        return self.layouts or [self]

    @property
    def name(self) -> str:
        return TABLE if self.table is not None else str(self.files[0])

    def test_part_beside(self) -> Path | None:
        """The test file of a split by RecBole or session-rec."""
        train = self.files[0] if len(self.files) == 1 else None
        names = SPLIT_NAMES.get(self.format)
        if names is None or not isinstance(train, Path) or names[0] not in train.name:
            return None
        test = train.with_name(train.name.replace(*names))
        return test if test.is_file() else None

    def read(
        self, progress: Progress, store: ClickStore, files: Sequence[File] | None = None
    ) -> ParsedLog:
        if self.table is not None:
            collector = ClickCollector(progress, self.options, store)
            read_table(TABLE, self.table, collector)
            return collector.parsed
        reader = READERS[self.format]
        options = replace(self.options, **reader.fixed)
        collector = ClickCollector(
            progress, options, store, self.files, reader.default_events
        )
        reader.read(self.files if files is None else files, collector)
        return collector.parsed


@contextmanager
def open_log(
    source: Any, format: str | None, options: LogOptions, progress: Progress
) -> Iterator[ClickLog]:
    if format is not None:
        check_format(format)
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
        yield open_files(files, format, options, progress)


def check_format(format: str) -> None:
    if format not in READERS:
        choices = ", ".join(READERS)
        raise InputError(f"format {format!r} is not known; choose one of {choices}")


def open_files(
    files: list[File], format: str | None, options: LogOptions, progress: Progress
) -> ClickLog:
    named = options_by_file(files, format, options)
    logs: list[ClickLog] = []  # of files that are read in one way
    with ThreadPoolExecutor(OPENED_AT_ONCE) as threads:  # files may be far away
        conclusions = threads.map(conclude, files, *zip(*named, strict=True))
    for file, found, (_, of_file) in zip(files, conclusions, named, strict=True):
        if isinstance(found, Conclusion):
            of_file = replace(of_file, delimiter=found.delimiter or of_file.delimiter)
            for log in logs:
                if (log.format, log.options) == (found.format, of_file):
                    break
            else:
                if found.because:
                    progress.message(
                        f"{file.name}: read as {found.format}, {found.because} "
                        "(pass --format if that is wrong)"
                    )
                check_format(found.format)
                of_file.check(found.format, READERS[found.format].options)
                log = ClickLog(found.format, of_file, concluded=bool(found.because))
                logs.append(log)
        elif not logs:
            raise found
        # Otherwise the file is empty, or begins with broken lines, and is as the one before.
        log.files.append(file)
    if len(logs) == 1:
        return logs[0]
    for log in logs:
        if "columns" not in READERS[log.format].options:
            raise InputError(
                f"{log.name} is read as {log.format}, and other files are not, so they can't be "
                "prepared together; name it alone, or pass --format if that is wrong"
            )
    formats = ", ".join(dict.fromkeys(log.format for log in logs))
    files = [file for log in logs for file in log.files]
    layouts = [replace(log, options=replace(log.options, mixed=True)) for log in logs]
    return ClickLog(formats, options, files, layouts=layouts)


def conclude(
    file: File, format: str | None, options: LogOptions
) -> Conclusion | InputError:
    try:
        if format == "recbole" and detect_format(file).format == "recbole-prefixes":
            format = "recbole-prefixes"
        found = Conclusion(format, "") if format else detect_format(file)
    except InputError as error:
        return error
    if found.because and options.delimiter and found.format in ("csv", "tsv"):
        reason = "text with the delimiter that was given"
        return Conclusion("csv", reason, options.delimiter)
    return found


def without_empty_start(files: list[File]) -> list[File]:
    """The layout of an empty file is that of the file before it."""
    for number, file in enumerate(files):
        if read_start(file, 1):
            return files[number:]
    return files


def is_path(source: Any) -> bool:
    if isinstance(source, str | Path):
        return True
    return isinstance(source, Sequence) and all(
        isinstance(name, str | Path) for name in source
    )


def as_frame(table: Any) -> pl.LazyFrame:
    if isinstance(table, pl.LazyFrame):
        return table
    module = type(table).__module__
    try:
        if module.partition(".")[0] == "pandas":
            # Before 2.2 it has no Arrow interface.
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
        "give a path, a list of paths, or a polars, pandas or Arrow table, not "
        f"{module}.{type(table).__name__}"
    )
