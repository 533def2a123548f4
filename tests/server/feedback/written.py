"""Feedback as files, without a server."""

import itertools
from pathlib import Path

import polars as pl

from posrec.server.feedback.answer_ids import new_answer_id
from posrec.server.feedback.converting import convert
from posrec.server.feedback.files import OPEN_FILES
from posrec.server.feedback.writing import FeedbackFiles

FINGERPRINT = "5f0c9e1b7a42"


def answer_of(files: FeedbackFiles, *items: str) -> str:
    """The id of an answer with these items, none of which is explored."""
    marked = [(item, False) for item in items]
    return new_answer_id(FINGERPRINT, "night-1", files.key, marked)


def write(files: FeedbackFiles, event: str, *items: str, session: str = "") -> int:
    """Feedback on an answer of its own."""
    return files.write(answer_of(files, *items), event, items, session or None)


def convert_all(files: FeedbackFiles) -> None:
    """In this process: another one takes longer."""
    if files.file is not None:
        files.file.close()
        files.file = None
    for path in files.folder.glob(OPEN_FILES):
        convert(path)


def parquet_rows(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in folder.glob("*.parquet")])


def write_days(folder: Path, *visitors_by_day: str) -> list[Path]:
    """One Parquet file for each day, with a click of each visitor that the day's text names."""
    for day, visitors in enumerate(visitors_by_day):
        now = itertools.repeat(1_700_000_000.0 + 86_400 * day)
        files = FeedbackFiles(folder, now.__next__)
        for visitor in visitors.split():
            write(files, "clicked", "i1", session=visitor)
        convert_all(files)
    return sorted(folder.glob("*.parquet"))
