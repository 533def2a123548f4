"""Preparing a log in tests, or reading it up to its click frame."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

import posrec
from posrec.data.prepare.steps import place_at_end_of_day
from posrec.data.source.files import File
from posrec.data.source.log import ClickLog
from posrec.data.source.readers.clicks import ClickStore, ItemIds
from posrec.data.source.readers.options import LogOptions
from posrec.progress import Progress, SilentProgress


def prepared(
    source: Any, out: Path, progress: Progress | None = None, **options: Any
) -> posrec.PreparedDataset:
    options.update(out=out, overwrite=True, progress=progress or SilentProgress())
    return posrec.prepare(source, **options)


class ReadClicks(NamedTuple):
    clicks: pl.DataFrame
    by_user: bool
    events: dict[str, int]


def read_clicks(
    format: str,
    files: Sequence[File],
    options: LogOptions | None = None,
    progress: Progress | None = None,
) -> ReadClicks:
    """The clicks of a log, read, reported and finished as `posrec prepare` does it."""
    progress = progress or SilentProgress()
    items = ItemIds()
    with tempfile.TemporaryDirectory() as folder:
        store = ClickStore(items, Path(folder))
        parsed = ClickLog(format, options or LogOptions(), list(files)).read(
            progress, store
        )
        parsed.report(progress)
    clicks = store.take()
    if "day" in clicks.columns:
        clicks = place_at_end_of_day(clicks)
    clicks = clicks.with_columns(item=items.names().gather(clicks["item"]))
    return ReadClicks(clicks, parsed.by_user, parsed.kinds.ordered())
