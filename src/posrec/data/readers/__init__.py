"""Readers of log formats: one function per format, listed in READERS.

A reader gets the files, what the user said about the log (LogOptions), where to report progress, and a ClickStore. It
adds clicks to the store: `session, item, time` in file order, ids as strings exactly as in the file, time in int64
milliseconds; and returns a ParsedLog.

To add a format: write `read_NAME(files, options, progress, store) -> ParsedLog` and add it to READERS. Start from the
reader that is closest: delimited.py for lines of fields, jsonl.py for JSON lines, parquet.py for tables, sessions.py
for files that already hold sessions. Add the options that it takes, such as --session-column, to OPTIONS_BY_FORMAT in
options.py.
"""

from collections.abc import Sequence
from typing import Protocol

from posrec.data.readers.clicks import ParsedLog
from posrec.data.readers.delimited import (
    read_csv,
    read_diginetica,
    read_recbole,
    read_retailrocket,
    read_tsv,
    read_yoochoose,
)
from posrec.data.readers.jsonl import read_jsonl
from posrec.data.readers.options import LogOptions
from posrec.data.readers.otto import read_otto
from posrec.data.readers.parquet import read_parquet
from posrec.data.readers.sessions import read_sessions, read_srgnn
from posrec.data.readers.store import ClickStore
from posrec.data.remote import File
from posrec.progress import Progress


class Reader(Protocol):
    def __call__(
        self, files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore | None = None
    ) -> ParsedLog: ...


READERS: dict[str, Reader] = {
    "yoochoose": read_yoochoose,
    "diginetica": read_diginetica,
    "retailrocket": read_retailrocket,
    "otto": read_otto,
    "recbole": read_recbole,
    "csv": read_csv,
    "tsv": read_tsv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "sessions": read_sessions,
    "srgnn": read_srgnn,
}
