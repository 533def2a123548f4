"""The files of feedback that `posrec serve --feedback` writes, and all of their rows as a frame."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posrec.errors import InputError, first_line
from posrec.io import whole_file

if TYPE_CHECKING:  # polars is imported where it is used: a server starts without it
    import polars as pl

FILES = "feedback-*.parquet"
OPEN_FILES = ".open-*.jsonl"  # that a running server is writing


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


COLUMNS = FeedbackRow.__struct_fields__


def feedback_schema() -> dict[str, Any]:
    import polars as pl

    return dict.fromkeys(COLUMNS, pl.String) | {
        "time": pl.Int64,
        "rank": pl.Int32,
        "signed": pl.Boolean,
        "value": pl.Float64,
        "explored": pl.Boolean,
    }


def read_feedback(folder: Path) -> "pl.DataFrame":
    """Open files are read first: one that is finished meanwhile is read twice, which does no harm
    since an impression counts once."""
    import polars as pl

    require_folder(folder)
    frames = []
    try:
        for file in folder.glob(OPEN_FILES):
            lines = whole_lines(file)
            if lines:
                frames.append(pl.read_ndjson(lines, schema=feedback_schema()))
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


def whole_lines(file: Path) -> bytes:
    """Without a line that is being written; nothing if the file was finished and removed."""
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
