"""Reading a log in tests, up to its click frame."""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from posrec.data.source.files import File
from posrec.data.source.log import Log
from posrec.data.source.readers.clicks import ClickStore
from posrec.data.source.readers.options import LogOptions
from posrec.progress import Progress, SilentProgress


class ReadClicks(NamedTuple):
    clicks: pl.DataFrame
    by_user: bool
    events: dict[str, int]


def read_clicks(
    format: str, files: Sequence[File], options: LogOptions | None = None, progress: Progress | None = None
) -> ReadClicks:
    """The clicks of a log in memory, which is read, reported and finished as `posrec prepare` does it."""
    progress, store = progress or SilentProgress(), ClickStore()
    parsed = Log(format, options or LogOptions(), files).read(progress, store)
    parsed.report(progress)
    clicks = store.take()
    clicks = clicks if parsed.finish is None else parsed.finish(clicks)
    return ReadClicks(clicks, parsed.by_user, parsed.kinds.ordered())
