"""Readers of log formats, listed in READERS.

A reader's function gets files and a ClickCollector, which has what the user said about the log (LogOptions) and where
to report progress. It adds clicks to the collector: `session, item, time` in file order, ids as strings exactly as in
the file.

To add a format: write `read_NAME(files, collector)` and add it to READERS. Start from the reader that is closest:
delimited.py for lines of fields, jsonl.py for JSON lines, parquet.py for tables, sessions.py for files that already
hold sessions. Add the options that it takes, such as --session-column, to OPTIONS_BY_FORMAT in options.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posrec.data.source.files import File
from posrec.data.source.readers.clicks import ClickCollector, ClickStore, ParsedLog, Step
from posrec.data.source.readers.delimited import (
    place_at_end_of_day,
    read_csv,
    read_diginetica,
    read_recbole,
    read_tsv,
    read_yoochoose,
)
from posrec.data.source.readers.jsonl import read_jsonl, read_otto
from posrec.data.source.readers.options import LogOptions
from posrec.data.source.readers.parquet import read_parquet
from posrec.data.source.readers.sessions import read_sessions, read_srgnn
from posrec.progress import Progress


@dataclass(frozen=True)
class Reader:
    """How a format is read. `columns` are those that it always has, by option; `default_events` are read unless the
    user asks for others; `finish`, clicks -> clicks, is a last step, which needs all clicks of a session."""

    read: Callable[[Sequence[File], ClickCollector], None]
    time_unit: str | None = None  # of numbers, if the format says it
    columns: Mapping[str, Any] = field(default_factory=dict)
    default_events: tuple[str, ...] = ()
    finish: Step | None = None

    def __call__(self, files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore) -> ParsedLog:
        """Add the clicks of the files to `store`. Its caller finishes and reports."""
        options = replace(options, **self.columns)
        collector = ClickCollector(progress, options, store, self.time_unit, self.default_events)
        self.read(files, collector)
        return collector.parsed_log(self.finish)


VISITORS = {"user_column": "visitorid", "item_column": "itemid", "time_column": "timestamp", "event_column": "event"}
READERS: dict[str, Reader] = {
    "yoochoose": Reader(read_yoochoose),
    "diginetica": Reader(read_diginetica, "ms", finish=place_at_end_of_day),
    "retailrocket": Reader(read_csv, "ms", VISITORS, default_events=("view",)),
    "otto": Reader(read_otto, "ms", default_events=("clicks",)),
    "recbole": Reader(read_recbole),
    "csv": Reader(read_csv),
    "tsv": Reader(read_tsv),
    "jsonl": Reader(read_jsonl),
    "parquet": Reader(read_parquet),
    "sessions": Reader(read_sessions, "ms"),
    "srgnn": Reader(read_srgnn, "ms"),
}
