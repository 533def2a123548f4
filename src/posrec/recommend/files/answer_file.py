"""Recommendations for the sessions of a part of a file, and the parts joined: JSON lines (plain or gzip) or Parquet.

A line or row has `id`, `items`, `scores`, `unknown` (clicks that were skipped) and `popular` (whether no click was
known), `explored` (the items that are there because they are new) where `explore` is asked for, and `fields` where
columns are (in Parquet a JSON text, since columns may be of any type).
"""

import gzip
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from posrec.errors import InputError
from posrec.io import os_error_in, whole_file
from posrec.recommend.files.session_file import kind_of

if TYPE_CHECKING:
    import polars as pl

ROW_GROUP = 16_384  # rows of a Parquet file that are compressed together


Answer = dict[str, Any]  # a line or row of the output


def check_output(path: Path) -> None:
    if kind_of(path) == "lines" and path.suffix == ".zst":
        raise InputError(f"{path}: zstd can be read but not written; name it .jsonl or .jsonl.gz")


@contextmanager
def whole_answer_file(path: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when the block succeeds. What polars raises for a full disk becomes an
    OSError. polars gets an open file: it would open a path in another thread, even after a failure has removed it."""
    import polars as pl

    with whole_file(path, overwrite) as unfinished, unfinished.open("wb") as file:
        try:
            yield file
        except pl.exceptions.PolarsError as error:
            raise os_error_in(error) or error from None


def write_answers(path: Path, answers: list[Answer], id_type: "pl.DataType", optional: Sequence[str]) -> None:
    """Replace a file of answers; its name says its format. `optional`: which of `explored` and `fields` they have."""
    with whole_answer_file(path, overwrite=True) as file:
        if kind_of(path) == "parquet":
            write_parquet(file, answers, id_type, optional)
            return
        lines = b"".join(as_line(answer) for answer in answers)
        file.write(gzip.compress(lines, compresslevel=6) if path.suffix == ".gz" else lines)


def as_line(answer: Answer) -> bytes:
    scores = [float(f"{score:.7g}") for score in answer["scores"]]  # float32 has no more digits
    line = json.dumps({**answer, "scores": scores}, ensure_ascii=False, default=str)  # an id may be a date
    return line.encode() + b"\n"


def write_parquet(file: BinaryIO, answers: list[Answer], id_type: "pl.DataType", optional: Sequence[str]) -> None:
    import polars as pl

    words = pl.List(pl.String())
    schema: dict[str, pl.DataType] = {
        "id": id_type,
        "items": words,
        "scores": pl.List(pl.Float32()),
        "unknown": words,
        "popular": pl.Boolean(),
    }
    schema |= {name: words if name == "explored" else pl.String() for name in optional}
    columns = {name: [answer[name] for answer in answers] for name in schema}
    if id_type == pl.String:
        columns["id"] = [id if isinstance(id, str) else json.dumps(id) for id in columns["id"]]
    if "fields" in columns:
        columns["fields"] = [json.dumps(fields, ensure_ascii=False) for fields in columns["fields"]]
    pl.DataFrame(columns, schema=schema).write_parquet(file)


def join_files(parts: list[Path], path: Path, overwrite: bool) -> None:
    """Write the answers of several files, in this order, as one file of the same format."""
    with whole_answer_file(path, overwrite) as file:
        if kind_of(path) == "parquet":
            import polars as pl

            pl.scan_parquet(parts).sink_parquet(file, row_group_size=ROW_GROUP, maintain_order=True)
            return
        for part in parts:  # gzip files that follow one another are a gzip file
            with part.open("rb") as content:
                shutil.copyfileobj(content, file, 2**20)
