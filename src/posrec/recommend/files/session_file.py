"""A file of sessions to score, read a chunk at a time: JSON lines (plain, gzip or zstd) or Parquet.

A line is {"session": ["sku-1", "sku-7"], "id": "a"} or just ["sku-1", "sku-7"]; rows of Parquet
have the same columns. Without an id, a session gets the number of its line or row.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from posrec.data.source.blocks import limited_lines
from posrec.data.source.files import unpacked
from posrec.data.source.readers.parquet import parquet_errors, scan_parquet
from posrec.errors import InputError

# Sessions of a chunk: some seconds of work on a core, and little memory.
CHUNK_ROWS = 8192
ENDING = re.compile(r"\.(parquet|(jsonl|ndjson)(\.gz|\.zst)?)$", re.IGNORECASE)


class SessionRow(NamedTuple):
    """A session of a file; `where` is what error messages call it: "sessions.jsonl, line 3"."""

    where: str
    id: Any
    session: Any


class SessionChunk(NamedTuple):
    rows: list[SessionRow]
    id_type: pl.DataType  # of a Parquet output
    read: int  # of the `total` bytes, or rows of Parquet, up to the end of the chunk
    total: int


def read_chunks(path: Path) -> Iterator[SessionChunk]:
    return read_parquet(path) if is_parquet(path) else read_lines(path)


def read_lines(path: Path) -> Iterator[SessionChunk]:
    with unpacked(path) as (plain, packed):
        numbered = enumerate(limited_lines(plain, path), start=1)
        while lines := list(islice(numbered, CHUNK_ROWS)):
            rows = [
                parse_line(f"{path}, line {number}", number, line)
                for number, line in lines
                if line.strip()
            ]
            if rows:
                id_type = pl.String()  # ids in JSON can be of many types
                yield SessionChunk(rows, id_type, packed.tell(), path.stat().st_size)


def parse_line(where: str, number: int, line: bytes) -> SessionRow:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # JSON, too deep, or not UTF-8
        raise InputError(
            f"{where}: the line is not JSON ({error}); fix or remove the line"
        ) from None
    if isinstance(value, list):
        return SessionRow(where, number, value)
    if not isinstance(value, dict) or "session" not in value:
        raise InputError(
            f'{where}: the line is neither {{"session": [...]}} nor a list; fix or remove the line'
        )
    if unknown := [name for name in value if name not in ("id", "session")]:
        raise InputError(
            f"{where}: there is no field {unknown[0]!r}; a line has a session and may have an id, "
            "and everything else is an option of the command"
        )
    return SessionRow(where, value.get("id", number), value["session"])


def read_parquet(path: Path) -> Iterator[SessionChunk]:
    frame = scan_parquet(path)
    schema = frame.collect_schema()
    if not isinstance(schema.get("session"), pl.List | pl.Array):
        columns = ", ".join(f"{name} ({kind})" for name, kind in schema.items())
        raise InputError(
            f"{path} must have a column 'session' of lists of item ids; it has {columns}"
        )
    if "id" not in schema:
        frame = frame.with_row_index("id", offset=1)
    read = 0
    with parquet_errors(path):
        total = frame.select(pl.len()).collect().item()
        batches = frame.select("id", "session").collect_batches(
            chunk_size=CHUNK_ROWS, maintain_order=True
        )
        for batch in batches:
            # polars keeps to the size only roughly.
            for chunk in batch.iter_slices(CHUNK_ROWS):
                rows = []
                for id, session in chunk.iter_rows():
                    read += 1
                    rows.append(SessionRow(f"{path}, row {read}", id, session))
                yield SessionChunk(rows, schema.get("id", pl.Int64()), read, total)


def is_parquet(path: Path) -> bool:
    """Whether a file name ends like Parquet, rather than like JSON lines."""
    if not ENDING.search(path.name):
        raise InputError(
            f"{path}: the file name must end in .jsonl, .jsonl.gz, .jsonl.zst or .parquet, "
            "which tells its format"
        )
    return path.suffix.lower() == ".parquet"
