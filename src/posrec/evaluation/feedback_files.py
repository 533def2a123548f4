"""The files of feedback that `posrec serve --feedback` writes, and all of their rows as a frame."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError, first_line

if TYPE_CHECKING:  # polars is imported where it is used: a server starts without it
    import polars as pl

FILES = "feedback-*.parquet"
OPEN_FILES = ".open-*.jsonl"  # that a running server is writing
# The columns of feedback, with the names of their types in polars; server/feedback.py says what they mean.
COLUMNS = {
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


def read_feedback(folder: Path) -> "pl.DataFrame":
    """All rows of a folder of feedback, also those that a running server has not turned into a Parquet file yet.

    Open files are read first: one that is finished meanwhile is read twice, and an impression counts once.
    """
    import polars as pl

    if not folder.is_dir():
        raise InputError(f"{folder} does not exist, or is not a folder")
    try:
        open_files = map(whole_lines, folder.glob(OPEN_FILES))
        rows = [pl.read_ndjson(lines, schema=feedback_schema()) for lines in open_files if lines]
        rows += [pl.read_parquet(file, columns=list(COLUMNS)) for file in sorted(folder.glob(FILES))]
        if not rows:
            raise InputError(f"{folder} holds no feedback ({FILES}); posrec serve --feedback {folder} writes it")
        return pl.concat(rows)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{folder} holds a file that is not feedback: {first_line(error)}") from None


def feedback_schema() -> dict[str, Any]:
    """The types of the columns of feedback, by name."""
    import polars as pl

    return {name: getattr(pl, kind) for name, kind in COLUMNS.items()}


def whole_lines(file: Path) -> bytes:
    """The complete lines of a file that is being written; none if it has been finished and removed."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]
