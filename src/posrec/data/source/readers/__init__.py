"""Readers of log formats, listed in READERS.

To add a format: write a function of (files, collector) that adds clicks (session, item, time) in
file order, and list it in READERS. Start from the closest reader: delimited.py for lines of fields,
jsonl.py for JSON lines, parquet.py for tables, sessions.py for whole sessions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from posrec.data.source.files import File
from posrec.data.source.readers.clicks import ClickCollector
from posrec.data.source.readers.delimited import (
    CSV,
    DIGINETICA,
    RECBOLE,
    TSV,
    YOOCHOOSE,
)
from posrec.data.source.readers.jsonl import read_jsonl, read_otto
from posrec.data.source.readers.options import ANY_FILE, CLICKS, EVENTS, LINES
from posrec.data.source.readers.parquet import read_parquet
from posrec.data.source.readers.sessions import read_prefixes, read_sessions, read_srgnn


class Reader(NamedTuple):
    read: Callable[[Sequence[File], ClickCollector], None]
    options: Sequence[str]  # of LogOptions, that the user may give
    fixed: Mapping[str, Any] = {}  # options that the format gives
    default_events: Sequence[str] = ()  # that are read unless the user asks for others


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
    "yoochoose": Reader(YOOCHOOSE.read, CLICKS),
    "diginetica": Reader(DIGINETICA.read, CLICKS, MILLISECONDS),
    "retailrocket": Reader(CSV.read, EVENT_CLICKS, VISITORS, default_events=["view"]),
    "otto": Reader(read_otto, EVENT_CLICKS, MILLISECONDS, default_events=["clicks"]),
    "recbole": Reader(RECBOLE.read, ANY_FILE),
    "recbole-prefixes": Reader(read_prefixes, (), MILLISECONDS),
    "csv": Reader(CSV.read, (*ANY_FILE, "delimiter")),
    "tsv": Reader(TSV.read, ANY_FILE),
    "jsonl": Reader(read_jsonl, ANY_FILE),
    "parquet": Reader(read_parquet, ANY_FILE),
    "sessions": Reader(read_sessions, LINES, MILLISECONDS),
    "srgnn": Reader(read_srgnn, (), MILLISECONDS),
}
