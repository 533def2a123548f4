"""Feedback that is deleted because it is old, and rows of visitors that are erased.

Both hold the lock of the folder, so that no file is converted meanwhile.
"""

import os
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.errors import InputError, first_line
from posrec.io import open_regular
from posrec.io.unfinished import is_abandoned, locked, remove_leftovers
from posrec.server.feedback.files import (
    FILES,
    OPEN_FILES,
    SET_ASIDE,
    read_lines,
    replace_parquet,
    require_folder,
    time_in_name,
)
from posrec.server.json_log import log_error, log_event

if TYPE_CHECKING:
    import polars as pl

OWNER_COLUMNS = ["visitor", "session", "answer"]


def delete_old(folder: Path, seconds: float) -> None:
    """Delete the files that were begun more than `seconds` ago; other names are not ours."""
    first_kept = time_in_name(max(0.0, time.time() - seconds))
    deleted = 0
    with locked(folder):
        for file in [*sorted(folder.glob(FILES)), *folder.glob(SET_ASIDE)]:
            begun = re.match(r"\.?(?:feedback|failed)-(\d{8}T\d{6})-", file.name)
            if begun is None or begun[1] >= first_kept:
                continue
            try:
                file.unlink()
            except OSError as error:
                reason = error.strerror
                log_error(
                    "old feedback can't be deleted", file=str(file), reason=reason
                )
                return
            deleted += 1
    if deleted:
        log_event("old feedback deleted", files=deleted)


def erase_visitors(folder: Path, visitors: Collection[str]) -> tuple[int, int]:
    """Erase rows that name these visitors, and rows without any id about their answers; returns the
    number of rows, and of files that had some. In open files, to which a worker appends, lines are
    overwritten with spaces."""
    import polars as pl

    require_folder(folder)
    with locked(folder):
        remove_leftovers(folder)  # a killed conversion leaves rows in them
        patterns = (OPEN_FILES, SET_ASIDE, FILES)
        files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
        for path in files:
            if path.suffix == ".jsonl":
                remove_cut_off_line(path)
        is_named = pl.col("visitor", "session").is_in(list(visitors))
        named = pl.any_horizontal(is_named.fill_null(value=False))
        answers: set[str] = set()
        # All files are read before any is changed: one may not be readable.
        for path in files:
            answers.update(read_owners(path).filter(named)["answer"])
        nameless = pl.col("visitor").is_null() & (pl.col("session") == pl.col("answer"))
        of_answers = nameless & pl.col("answer").is_in(list(answers))
        erased = named | of_answers.fill_null(value=False)
        counts = [erase_rows(path, erased) for path in files]
    return sum(counts), sum(count > 0 for count in counts)


def remove_cut_off_line(path: Path) -> None:
    """Which a killed writer has left, and which may have an id."""
    with open_regular(path) as file:
        if is_abandoned(file.fileno()):
            content = file.read()
            os.truncate(path, content.rfind(b"\n") + 1)


def erase_rows(path: Path, condition: "pl.Expr") -> int:
    import polars as pl

    rows = read_owners(path)
    erased = rows.select(condition).to_series()
    if erased.any():
        if path.suffix == ".jsonl":
            blank_lines(path, rows.filter(erased).select("start", "end").rows())
        elif erased.all():
            path.unlink()
        else:
            replace_parquet(path, pl.read_parquet(path).filter(~erased))
    return int(erased.sum())


def read_owners(path: Path) -> "pl.DataFrame":
    """The columns that identify a visitor, and where each line of an open file starts and ends."""
    import polars as pl

    if path.suffix == ".jsonl":
        lines = [
            (row.visitor, row.session, row.answer, start, end)
            for start, end, row in read_lines(path)
        ]
        texts = dict.fromkeys(OWNER_COLUMNS, pl.String)
        schema = {**texts, "start": pl.Int64, "end": pl.Int64}
        return pl.DataFrame(lines, schema=schema, orient="row")
    try:
        return pl.read_parquet(path, columns=OWNER_COLUMNS)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"{path} can't be read ({first_line(error)}), so nothing was erased; delete it "
            "if it is damaged, and try again"
        ) from None


def blank_lines(path: Path, ranges: Iterable[tuple[int, int]]) -> None:
    with path.open("r+b", buffering=0) as file:
        for start, end in ranges:
            file.seek(start)
            file.write(b" " * (end - start))
        os.fsync(file.fileno())
