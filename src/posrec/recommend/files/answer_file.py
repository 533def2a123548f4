"""Recommendations for the sessions of a file, written a chunk at a time: JSON lines (plain or gzip) or Parquet.

A line or row has `id`, `items`, `scores`, `unknown` (clicks that were skipped) and `popular` (whether no click was
known), and `fields` where columns are asked for (in Parquet a JSON text, since columns may be of any type).
"""

import gzip
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError
from posrec.io import os_error_in
from posrec.recommend.files.session_file import ROWS, kind_of

if TYPE_CHECKING:
    import polars as pl

ROW_GROUP = 8 * ROWS  # rows of a Parquet file that are compressed together


@dataclass(frozen=True)
class ScoredSession:
    """A line or row of the output."""

    id: Any
    items: list[str]
    scores: list[float]
    unknown: tuple[str, ...]
    popular: bool
    fields: list[dict[str, Any]] | None = None  # the columns of each item, where they were asked for


def check_output(path: Path) -> None:
    if kind_of(path) == "lines" and path.suffix == ".zst":
        raise InputError(f"{path}: zstd can be read but not written; name it .jsonl or .jsonl.gz")


def write_answers(
    path: Path, answers: Iterable[list[ScoredSession]], id_type: "pl.DataType", with_fields: bool
) -> None:
    """Write each chunk of answers as soon as it is computed."""
    if kind_of(path) == "parquet":
        write_parquet(path, answers, id_type, with_fields)
        return
    with gzip.open(path, "wb", compresslevel=6) if path.suffix == ".gz" else path.open("wb") as file:
        for chunk in answers:
            file.write(b"".join(as_line(one) for one in chunk))


def as_line(answer: ScoredSession) -> bytes:
    values = {
        **vars(answer),
        "scores": [float(f"{score:.7g}") for score in answer.scores],
    }  # float32 has no more digits
    if answer.fields is None:
        del values["fields"]
    return json.dumps(values, ensure_ascii=False, default=str).encode() + b"\n"  # an id may be a date


def write_parquet(
    path: Path, answers: Iterable[list[ScoredSession]], id_type: "pl.DataType", with_fields: bool
) -> None:
    import polars as pl
    from polars.io.plugins import register_io_source

    words, numbers = pl.List(pl.String()), pl.List(pl.Float32())
    schema: dict[str, pl.DataType] = {
        "id": id_type, "items": words, "scores": numbers, "unknown": words, "popular": pl.Boolean()
    }  # fmt: skip
    if with_fields:
        schema["fields"] = pl.String()

    def frames(*_: Any) -> Iterator[pl.DataFrame]:
        for chunk in answers:
            columns = {name: [getattr(one, name) for one in chunk] for name in schema}
            if id_type == pl.String:
                columns["id"] = [one if isinstance(one, str) else json.dumps(one) for one in columns["id"]]
            if with_fields:
                columns["fields"] = [json.dumps(one, ensure_ascii=False) for one in columns["fields"]]
            yield pl.DataFrame(columns, schema=schema)

    # An open file, not a path: polars opens a path in another thread, even after a failure has removed the file.
    with path.open("wb") as file:
        rows = register_io_source(frames, schema=schema)
        try:
            rows.sink_parquet(file, row_group_size=ROW_GROUP, maintain_order=True)
        except pl.exceptions.PolarsError as error:
            raise os_error_in(error) or error from None


def join_files(parts: list[Path], path: Path) -> None:
    """Write the answers of several files, in this order, as one file of the same format."""
    if kind_of(path) == "parquet":
        import polars as pl

        with path.open("wb") as file:
            try:
                pl.scan_parquet(parts).sink_parquet(file, row_group_size=ROW_GROUP, maintain_order=True)
            except pl.exceptions.PolarsError as error:
                raise os_error_in(error) or error from None
        return
    with path.open("wb") as file:  # gzip files that follow one another are a gzip file
        for part in parts:
            with part.open("rb") as one:
                shutil.copyfileobj(one, file, 2**20)
