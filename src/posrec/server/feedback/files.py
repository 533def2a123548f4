"""The files of feedback that `posrec serve --feedback` writes, and all of their rows as a frame."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posrec.errors import InputError, first_line
from posrec.io import whole_file

if TYPE_CHECKING:  # polars is imported where it is used: a server starts without it
    import polars as pl

FILES = "feedback-*.parquet"
TIME_IN_NAME = "%Y%m%dT%H%M%S"  # when a file was begun, UTC
OPEN_FILES = ".open-*.jsonl"  # that a running server is writing
COLUMNS = {  # with the names of their types in polars
    "time": "Int64",
    "session": "String",
    "item": "String",
    "event": "String",
    "rank": "Int32",
    "answer": "String",
    "run": "String",
    "signed": "Boolean",
    "visitor": "String",
    "name": "String",
    "value": "Float64",
    "explored": "Boolean",
}


class FeedbackRow(msgspec.Struct):
    time: int  # milliseconds since 1970
    session: str
    item: str
    event: str
    rank: int | None  # of a shown item, from 1
    answer: str
    run: str  # the fingerprint of the run that answered
    signed: bool  # whether the server gave this answer
    visitor: str | None
    name: str | None  # of the run that answered
    value: float | None  # of a purchase
    explored: bool  # whether the item was in the answer because it is new


def read_feedback(folder: Path) -> "pl.DataFrame":
    """Also rows that a running server has not turned into a Parquet file yet. Open files are read
    first: one that is finished meanwhile is read twice, and an impression counts once."""
    import polars as pl

    if not folder.is_dir():
        raise InputError(f"{folder} does not exist, or is not a folder")
    try:
        open_files = map(whole_lines, folder.glob(OPEN_FILES))
        rows = [
            pl.read_ndjson(lines, schema=feedback_schema())
            for lines in open_files
            if lines
        ]
        rows += [
            pl.read_parquet(file, columns=list(COLUMNS))
            for file in sorted(folder.glob(FILES))
        ]
        if not rows:
            raise InputError(
                f"{folder} holds no feedback ({FILES}); posrec serve --feedback {folder} writes it"
            )
        return pl.concat(rows)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{folder} holds a file that is not feedback: {first_line(error)}"
        ) from None


def feedback_schema() -> dict[str, Any]:
    import polars as pl

    return {name: getattr(pl, kind) for name, kind in COLUMNS.items()}


def whole_lines(file: Path) -> bytes:
    """The complete lines of a file that is being written; none if it has been finished and removed."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def read_lines(path: Path) -> Iterator[tuple[int, int, FeedbackRow]]:
    """Where each line of an open file starts and ends, and its row, unless it was erased."""
    start = 0
    for line in whole_lines(path).splitlines(keepends=True):
        end = start + len(line) - 1
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            yield start, end, msgspec.json.decode(line, type=FeedbackRow)
        start = end + 1


def replace_parquet(path: Path, rows: "pl.DataFrame") -> None:
    with whole_file(path, overwrite=True) as unfinished:
        rows.write_parquet(unfinished)
