"""Readers of log formats, listed in READERS.

To add a format: write `read_NAME(files, collector)` and add it to READERS. It adds clicks,
`session, item, time`, in file order, ids as strings. Start from the closest reader: delimited.py
for lines of fields, jsonl.py for JSON lines, parquet.py for tables, sessions.py for whole sessions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from posrec.data.source.files import File
from posrec.data.source.readers.clicks import ClickCollector, ClickStore, ParsedLog
from posrec.data.source.readers.delimited import (
    CSV,
    DIGINETICA,
    RECBOLE,
    TSV,
    YOOCHOOSE,
    read_text,
)
from posrec.data.source.readers.jsonl import read_jsonl, read_otto
from posrec.data.source.readers.options import (
    ANY_LOG,
    CLICKS,
    EVENTS,
    LINES,
    LogOptions,
)
from posrec.data.source.readers.parquet import read_parquet
from posrec.data.source.readers.sessions import read_prefixes, read_sessions, read_srgnn
from posrec.progress import Progress


@dataclass(frozen=True)
class Reader:
    """How a format is read."""

    read: Callable[[Sequence[File], ClickCollector], None]
    options: Sequence[str]  # of LogOptions, that the user may give
    fixed: Mapping[str, Any] = field(
        default_factory=dict
    )  # options that the format gives
    default_events: Sequence[str] = ()  # that are read unless the user asks for others

    def __call__(
        self,
        files: Sequence[File],
        options: LogOptions,
        progress: Progress,
        store: ClickStore,
        whole_log: Sequence[File] = (),
    ) -> ParsedLog:
        """Add the clicks of the files to `store`. The caller reports on the whole log."""
        options = replace(options, **self.fixed)
        collector = ClickCollector(
            progress, options, store, whole_log, self.default_events
        )
        self.read(files, collector)
        collector.parsed.time_unit = collector.read_time.unit
        return collector.parsed


MILLISECONDS = {"time_unit": "ms"}
VISITORS = {
    **MILLISECONDS,
    "user_column": "visitorid",
    "item_column": "itemid",
    "time_column": "timestamp",
    "event_column": "event",
}
EVENT_CLICKS = (*EVENTS, *CLICKS)
READERS: dict[str, Reader] = {
    "yoochoose": Reader(partial(read_text, YOOCHOOSE), CLICKS),
    "diginetica": Reader(partial(read_text, DIGINETICA), CLICKS, MILLISECONDS),
    "retailrocket": Reader(
        partial(read_text, CSV), EVENT_CLICKS, VISITORS, default_events=["view"]
    ),
    "otto": Reader(read_otto, EVENT_CLICKS, MILLISECONDS, default_events=["clicks"]),
    "recbole": Reader(partial(read_text, RECBOLE), ANY_LOG),
    "recbole-prefixes": Reader(read_prefixes, (), MILLISECONDS),
    "csv": Reader(partial(read_text, CSV), (*ANY_LOG, "delimiter")),
    "tsv": Reader(partial(read_text, TSV), ANY_LOG),
    "jsonl": Reader(read_jsonl, ANY_LOG),
    "parquet": Reader(read_parquet, ANY_LOG),
    "sessions": Reader(read_sessions, LINES, MILLISECONDS),
    "srgnn": Reader(read_srgnn, (), MILLISECONDS),
}
