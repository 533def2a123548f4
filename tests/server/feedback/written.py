"""Feedback as files, without a server."""

import itertools
from pathlib import Path

import polars as pl

from posrec.server.feedback.writing import FeedbackFiles, convert_and_close


def convert_all(files: FeedbackFiles) -> None:
    for file in files.take_files(also_recent=True):
        convert_and_close(file)


def parquet_rows(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in folder.glob("*.parquet")])


def write_days(folder: Path, *visitors_by_day: str) -> list[Path]:
    """One Parquet file for each day, with a click of each visitor that the day's text names."""
    for day, visitors in enumerate(visitors_by_day):
        now = itertools.repeat(1_700_000_000.0 + 86_400 * day)
        files = FeedbackFiles(folder, now.__next__)
        for visitor in visitors.split():
            files.write(f"run-{visitor}", "clicked", ["i1"], visitor)
        convert_all(files)
    return sorted(folder.glob("*.parquet"))
