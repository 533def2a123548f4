"""The files of feedback that `posrec serve --feedback` writes, and all of their rows as a frame."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posrec.errors import InputError, first_line
from posrec.io import open_regular, whole_file
from posrec.io.unfinished import locked

if TYPE_CHECKING:  # polars is imported where it is used: a server starts without it
    import polars as pl

FILES = "feedback-*.parquet"
OPEN_FILES = ".open-*.jsonl"  # that a running server is writing
SET_ASIDE = ".failed-*.jsonl"  # that could not be converted
ROWS_AT_ONCE = 10_000
OWNER_ALONE = 0o600  # may read feedback, which has ids of visitors


class FeedbackRow(msgspec.Struct):
    time: int  # milliseconds since 1970
    session: str
    item: str
    event: str
    rank: int | None  # of a shown item, from 1
    answer: str  # its id, without marks and signature
    run: str  # the fingerprint of the run that answered
    visitor: str | None
    name: str  # of the run that answered
    value: float | None  # of a purchase
    explored: bool  # whether the item was in the answer because it is new


COLUMNS = FeedbackRow.__struct_fields__


def feedback_schema() -> dict[str, Any]:
    import polars as pl

    return dict.fromkeys(COLUMNS, pl.String) | {
        "time": pl.Int64,
        "rank": pl.Int32,
        "value": pl.Float64,
        "explored": pl.Boolean,
    }


def read_feedback(folder: Path) -> "pl.DataFrame":
    import polars as pl

    require_folder(folder)
    frames: list[pl.DataFrame] = []
    try:
        with locked(folder):  # no file is converted meanwhile
            for file in folder.glob(OPEN_FILES):
                frames += read_frames(file)
            for file in sorted(folder.glob(FILES)):
                frames.append(pl.read_parquet(file, columns=list(COLUMNS)))
        if frames:
            return pl.concat(frames)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{folder} holds a file that is not feedback: {first_line(error)}"
        ) from None
    raise InputError(
        f"{folder} holds no feedback ({FILES}); posrec serve --feedback {folder} writes it"
    )


def time_in_name(seconds: float) -> str:
    """When a file was begun, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S")


def require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist, or is not a folder")


def read_lines(path: Path) -> Iterator[tuple[int, int, FeedbackRow]]:
    """Where each line of an open file starts and ends, and its row, unless it was erased."""
    start = 0
    with open_regular(path) as lines:
        for line in lines:
            end = start + len(line) - 1
            if not line.endswith(b"\n"):
                return  # it is being written, or its writer was killed
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                yield start, end, msgspec.json.decode(line, type=FeedbackRow)
            start = end + 1


def read_frames(path: Path) -> "Iterator[pl.DataFrame]":
    """The rows of an open file. As Python's objects they take more memory, so a few at a time."""
    import polars as pl

    rows = (msgspec.structs.astuple(row) for _, _, row in read_lines(path))
    while some := list(islice(rows, ROWS_AT_ONCE)):
        yield pl.DataFrame(some, schema=feedback_schema(), orient="row")


def replace_parquet(path: Path, rows: "pl.DataFrame") -> None:
    with whole_file(path, overwrite=True) as unfinished:
        unfinished.chmod(OWNER_ALONE)
        rows.write_parquet(unfinished)
