"""A file of recommendations, written a chunk at a time: JSON lines (plain or gzip) or Parquet."""

import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from posrec.io import os_error_in, scratch_folder, whole_file
from posrec.recommend.files.session_file import is_parquet

ROW_GROUP = 16_384  # rows of a Parquet file that are compressed together
COLUMNS: dict[str, pl.DataType] = {
    "items": pl.List(pl.String()),
    "scores": pl.List(pl.Float32()),
    "unknown": pl.List(pl.String()),  # clicks that were skipped
    "popular": pl.Boolean(),  # whether no click was known
    "explored": pl.List(pl.String()),  # with --explore: the new items
    "fields": pl.String(),  # with --fields; JSON, since columns may be of any type
}

Answer = dict[str, Any]  # a line or row


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
    return json.dumps(answer, ensure_ascii=False, default=str).encode() + b"\n"


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
