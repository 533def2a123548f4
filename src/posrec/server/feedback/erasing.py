"""Feedback that is deleted because it is old, and rows of visitors that are erased.

Both happen under the lock of the folder, which whoever converts a file holds too: no row is copied
from one file to another meanwhile.
"""

import logging
import os
import re
import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.errors import InputError, first_line
from posrec.io.unfinished import locked, remove_leftovers
from posrec.server.feedback.files import (
    FILES,
    OPEN_FILES,
    TIME_IN_NAME,
    read_lines,
    replace_parquet,
)
from posrec.server.json_log import log_event

if TYPE_CHECKING:
    import polars as pl

FILE_NAME = re.compile(r"feedback-(\d{8}T\d{6})-")
OWNER_COLUMNS = [
    "visitor",
    "session",
    "answer",
]  # by which the visitor of a row is known


def delete_old(folder: Path, seconds: float) -> None:
    """Delete the files that were begun more than `seconds` ago. Files of other names are not ours."""
    first_kept = datetime.fromtimestamp(max(0.0, time.time() - seconds), UTC).strftime(
        TIME_IN_NAME
    )
    with locked(folder):
        old = [
            file
            for file in folder.glob(FILES)
            if (begun := FILE_NAME.match(file.name)) and begun[1] < first_kept
        ]
        try:
            for file in old:
                file.unlink()
        except OSError as error:
            log_event(
                "old feedback can't be deleted",
                logging.ERROR,
                file=str(file),
                reason=error.strerror,
            )
            return
    if old:
        log_event("old feedback deleted", files=len(old))


def erase_visitors(folder: Path, visitors: Collection[str]) -> tuple[int, int]:
    """Erase rows that name these visitors, and what was reported of their answers without any id;
    returns the number of rows, and of files that had some.

    A Parquet file is replaced. Lines of open files, to which a worker appends, are overwritten with
    spaces."""
    import polars as pl

    if not folder.is_dir():
        raise InputError(f"{folder} does not exist, or is not a folder")
    with locked(folder):
        remove_leftovers(folder)  # a killed conversion leaves rows in them
        files = [*sorted(folder.glob(OPEN_FILES)), *sorted(folder.glob(FILES))]
        named = pl.any_horizontal(
            pl.col("visitor", "session").is_in(list(visitors)).fill_null(value=False)
        )
        answers: set[str] = set()
        for path in (
            files
        ):  # once to find the answers and files that can't be read, and once to erase
            answers.update(read_owners(path).filter(named)["answer"])
        nameless = pl.col("visitor").is_null() & (pl.col("session") == pl.col("answer"))
        of_visitors = named | (
            nameless & pl.col("answer").is_in(list(answers))
        ).fill_null(value=False)
        counts = [count for path in files if (count := erase_rows(path, of_visitors))]
    return sum(counts), len(counts)


def erase_rows(path: Path, of_visitors: "pl.Expr") -> int:
    import polars as pl

    rows = read_owners(path)
    erased = rows.select(of_visitors).to_series()
    if erased.any():
        if path.suffix == ".jsonl":
            blank_lines(path, rows.filter(erased).select("start", "end").rows())
        elif erased.all():
            path.unlink()
        else:
            replace_parquet(path, pl.read_parquet(path).filter(~erased))
    return int(erased.sum())


def read_owners(path: Path) -> "pl.DataFrame":
    """Whose a row is; of an open file, also where its line starts and ends."""
    import polars as pl

    if path.suffix == ".jsonl":
        lines = [
            (*(getattr(row, name) for name in OWNER_COLUMNS), start, end)
            for start, end, row in read_lines(path)
        ]
        schema = {
            **dict.fromkeys(OWNER_COLUMNS, pl.String),
            "start": pl.Int64,
            "end": pl.Int64,
        }
        return pl.DataFrame(lines, schema=schema, orient="row")
    try:
        return pl.read_parquet(path, columns=OWNER_COLUMNS)
    except (pl.exceptions.PolarsError, OSError) as error:
        what = f"{path} can't be read ({first_line(error)})"
        raise InputError(
            f"{what}, so nothing was erased; delete it if it is damaged, and try again"
        ) from None


def blank_lines(path: Path, places: Iterable[tuple[int, int]]) -> None:
    with path.open("r+b", buffering=0) as file:
        for start, end in places:
            file.seek(start)
            file.write(b" " * (end - start))
        os.fsync(file.fileno())
