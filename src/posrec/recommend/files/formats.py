"""The files of `posrec score`, a chunk at a time: sessions to read, and answers to write.

They are JSON lines (plain, gzip, or zstd to read) or Parquet. A line of sessions is
{"session": ["sku-1", "sku-7"], "id": "a"} or just ["sku-1", "sku-7"]; rows of Parquet have the same
columns. Without an id, a session gets the number of its line or row.
"""

import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from posrec.data.source.blocks import limited_lines
from posrec.data.source.files import unpacked
from posrec.data.source.readers.parquet import parquet_errors, scan_parquet
from posrec.errors import InputError
from posrec.io import os_error_in, scratch_folder, to_json, whole_file

# Sessions of a chunk: some seconds of work on a core, and little memory.
CHUNK_ROWS = 8192
ROW_GROUP = 16_384  # rows of a Parquet file that are compressed together
ENDING = re.compile(r"\.(parquet|(jsonl|ndjson)(\.gz|\.zst)?)$", re.IGNORECASE)
# Of answers.
COLUMNS: dict[str, pl.DataType] = {
    "items": pl.List(pl.String()),
    "scores": pl.List(pl.Float32()),
    "unknown": pl.List(pl.String()),  # clicks that were skipped
    "popular": pl.Boolean(),  # whether no click was known
    "explored": pl.List(pl.String()),  # with --explore: the new items
    "fields": pl.String(),  # with --fields; JSON, since columns may be of any type
}

Answer = dict[str, Any]  # a line or row


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


def answers_content(answers: list[Answer], path: Path, id_type: pl.DataType) -> bytes:
    """What a file with these answers alone would hold; the name of the file says its format."""
    if is_parquet(path):
        return as_parquet(answers, id_type)
    lines = b"".join(as_line(answer) for answer in answers)
    if path.suffix == ".gz":
        return gzip.compress(lines, compresslevel=6, mtime=0)
    return lines


def as_line(answer: Answer) -> bytes:
    # float32 has seven digits.
    scores = [float(f"{score:.7g}") for score in answer["scores"]]
    answer = {**answer, "scores": scores}
    # An id may be a date, which becomes text.
    return to_json(answer, default=str).encode() + b"\n"


def as_parquet(answers: list[Answer], id_type: pl.DataType) -> bytes:
    columns = {name: [answer[name] for answer in answers] for name in answers[0]}
    if id_type == pl.String:
        ids = columns["id"]
        columns["id"] = [id if isinstance(id, str) else json.dumps(id) for id in ids]
    if "fields" in columns:
        columns["fields"] = [
            json.dumps(fields, ensure_ascii=False) for fields in columns["fields"]
        ]
    types = {"id": id_type, **COLUMNS}
    schema = {name: types[name] for name in columns}
    content = io.BytesIO()
    pl.DataFrame(columns, schema).write_parquet(content)
    return content.getvalue()


@contextmanager
def answer_writer(path: Path, overwrite: bool) -> Iterator[Callable[[bytes], Any]]:
    """A function that writes the next `answers_content`; the file gets its name when the block
    succeeds."""
    with whole_file(path, overwrite) as unfinished, unfinished.open("wb") as file:
        if not is_parquet(path):
            yield file.write  # gzip files that follow one another are a gzip file
            return
        # Parquet files that follow one another are not a Parquet file.
        with scratch_folder(path) as folder:
            numbers = count()
            yield lambda content: (folder / f"{next(numbers):09d}").write_bytes(content)
            chunks = pl.scan_parquet(sorted(folder.iterdir()))
            # polars would open a path in another thread, even after it was removed.
            try:
                chunks.sink_parquet(file, row_group_size=ROW_GROUP, maintain_order=True)
            except pl.exceptions.PolarsError as error:
                raise os_error_in(error) or error from None  # such as a full disk
