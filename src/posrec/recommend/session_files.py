"""Files of sessions in, files of answers out: JSON lines (plain or gzip; zstd is read too) and Parquet, in chunks.

In: a line is {"session": ["sku-1", "sku-7"], "id": "a"} or just ["sku-1", "sku-7"]; a Parquet file has a column
`session` of lists and perhaps a column `id`. Where there is no id, a session goes by the number of its line or row.
Out: `id`, `items`, `scores`, `unknown` (clicks that were skipped) and `popular` (whether none was known).
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.data.sources import decompression_errors, find_files, unpacked
from posrec.errors import InputError

if TYPE_CHECKING:
    import polars as pl

ROWS = 2048  # sessions at a time
JSON_LINES, PARQUET = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"), (".parquet",)


@dataclass(frozen=True)
class Row:
    """A session as it stands in a file; `place` says where, counted from 1."""

    place: int
    id: Any
    session: Any


@dataclass(frozen=True)
class Scored:
    """The answer to a session, as it is written."""

    id: Any
    items: list[str]
    scores: list[float]
    unknown: tuple[str, ...]
    popular: bool


@dataclass(frozen=True)
class Chunk:
    """Some sessions, and how much of the file has been read with them."""

    rows: list[Row]
    done: float
    total: float


class SessionFile:
    """A file of sessions, to be read chunk by chunk; `unit` is what its places are called."""

    def __init__(self, path: Path) -> None:
        find_files(path)
        self.path = path
        self.parquet = kind_of(path) == "parquet"
        self.unit = "row" if self.parquet else "line"

    def chunks(self) -> Iterator[Chunk]:
        return self.parquet_chunks() if self.parquet else self.line_chunks()

    def line_chunks(self) -> Iterator[Chunk]:
        size = self.path.stat().st_size
        with self.path.open("rb") as packed, decompression_errors(self.path):
            numbered = enumerate(unpacked(packed), start=1)
            while lines := list(islice(numbered, ROWS)):
                rows = [self.parsed(place, line) for place, line in lines if line.strip()]
                yield Chunk(rows, packed.tell(), size)

    def parsed(self, place: int, line: bytes) -> Row:
        try:
            value = json.loads(line)
        except ValueError as error:  # JSON or UTF-8
            raise InputError(f"{self.path}, line {place}: not JSON ({error}); mend or remove the line") from None
        if isinstance(value, dict) and "session" in value:
            return Row(place, value.get("id", place), value["session"])
        if isinstance(value, list):
            return Row(place, place, value)
        raise InputError(f'{self.path}, line {place}: neither {{"session": [...]}} nor a list; mend or remove the line')

    def parquet_chunks(self) -> Iterator[Chunk]:
        import polars as pl

        frame, has_id = self.parquet_columns()
        total, place = frame.select(pl.len()).collect().item(), 0
        for part in frame.collect_batches(chunk_size=ROWS, maintain_order=True):
            sessions, first = part["session"].to_list(), place + 1
            ids = part["id"].to_list() if has_id else range(first, first + len(part))
            place += len(part)
            yield Chunk([Row(first + i, *row) for i, row in enumerate(zip(ids, sessions, strict=True))], place, total)

    def parquet_columns(self) -> tuple["pl.LazyFrame", bool]:
        """The columns that are read, and whether there are ids among them."""
        import polars as pl

        from posrec.data.readers.parquet import scan_parquet

        frame = scan_parquet(self.path)
        schema = frame.collect_schema()
        if not isinstance(schema.get("session"), pl.List | pl.Array):
            found = ", ".join(f"{name} ({kind})" for name, kind in schema.items())
            raise InputError(f"{self.path} must have a column 'session' of lists of item ids; it has {found}")
        return frame.select(name for name in ("id", "session") if name in schema), "id" in schema

    def id_type(self) -> "pl.DataType":
        """What ids are in a Parquet file of answers. Ids of JSON may be of many kinds, so they become text."""
        import polars as pl

        if not self.parquet:
            return pl.String()
        frame, has_id = self.parquet_columns()
        return frame.collect_schema()["id"] if has_id else pl.Int64()


def kind_of(path: Path) -> str:
    name = path.name.lower()
    for kind, endings in (("lines", JSON_LINES), ("parquet", PARQUET)):
        if name.endswith(endings):
            return kind
    raise InputError(f"{path}: the name must end in .jsonl, .jsonl.gz or .parquet, to say what the file holds")


def check_output(path: Path) -> None:
    if kind_of(path) == "lines" and path.suffix == ".zst":
        raise InputError(f"{path}: answers are written plain or as .gz; name it .jsonl or .jsonl.gz")


def write_answers(path: Path, answers: Iterable[list[Scored]], id_type: "pl.DataType") -> None:
    """Write chunks of answers as they come."""
    if kind_of(path) == "parquet":
        write_parquet(path, answers, id_type)
        return
    with gzip.open(path, "wb", compresslevel=6) if path.suffix == ".gz" else path.open("wb") as file:
        for chunk in answers:
            file.write(b"".join(as_line(one) for one in chunk))


def as_line(answer: Scored) -> bytes:
    values = {**vars(answer), "scores": [float(f"{score:.7g}") for score in answer.scores]}  # float32 holds no more
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def write_parquet(path: Path, answers: Iterable[list[Scored]], id_type: "pl.DataType") -> None:
    import polars as pl
    from polars.io.plugins import register_io_source

    words, numbers = pl.List(pl.String()), pl.List(pl.Float32())
    schema: dict[str, pl.DataType] = {
        "id": id_type, "items": words, "scores": numbers, "unknown": words, "popular": pl.Boolean()
    }  # fmt: skip

    def frames(*_: Any) -> Iterator[pl.DataFrame]:
        for chunk in answers:
            columns = {name: [getattr(one, name) for one in chunk] for name in schema}
            if id_type == pl.String:
                columns["id"] = [one if isinstance(one, str) else json.dumps(one) for one in columns["id"]]
            yield pl.DataFrame(columns, schema=schema)

    # Into an open file: polars opens a path in a thread of its own, even after all has failed and the file was removed.
    with path.open("wb") as file:
        register_io_source(frames, schema=schema).sink_parquet(file, row_group_size=8 * ROWS, maintain_order=True)
