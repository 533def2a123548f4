"""Feedback as files, without a server."""

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
        now = 1_700_000_000.0 + 86_400 * day
        files = FeedbackFiles(folder, lambda now=now: now)
        for visitor in visitors.split():
            files.write(f"run-{visitor}", "clicked", ["i1"], visitor)
        convert_all(files)
    return sorted(folder.glob("*.parquet"))
