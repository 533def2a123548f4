"""A file of sessions to score, read a part at a time: JSON lines (plain, gzip or zstd) or Parquet.

A line is {"session": ["sku-1", "sku-7"], "id": "a"} or just ["sku-1", "sku-7"]; a Parquet file has a column
`session` of lists and may have a column `id`. Without an id, a session gets the number of its line or row.

Reading and parsing are two steps, so that one process can read what others parse.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posrec.data.source.blocks import limited_lines
from posrec.data.source.files import unpacked
from posrec.errors import InputError

if TYPE_CHECKING:
    import polars as pl

PART_ROWS = 8192  # sessions in a part: about a second of work, and little memory
JSON_LINES, PARQUET = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"), (".parquet",)


class SessionRow(NamedTuple):
    """A session of a file; `place` is the number of its line or row, counted from 1."""

    place: int
    id: Any
    session: Any


class Part(NamedTuple):
    """Consecutive lines or rows, not yet parsed, from number `first` on; `size` of them, of the `total` of the file, is
    counted in rows, or in bytes of lines."""

    first: int
    content: "list[bytes] | pl.DataFrame"
    size: int
    total: int


def parts_of(path: Path) -> Iterator[Part]:
    """The file in parts of PART_ROWS lines or rows; the last one may have fewer."""
    return parts_of_parquet(path) if kind_of(path) == "parquet" else parts_of_lines(path)


def parts_of_lines(path: Path) -> Iterator[Part]:
    total, first, before = path.stat().st_size, 1, 0
    with unpacked(path) as (plain, packed):
        lines = limited_lines(plain, path)
        while content := list(islice(lines, PART_ROWS)):
            yield Part(first, content, packed.tell() - before, total)
            first, before = first + len(content), packed.tell()


def parts_of_parquet(path: Path) -> Iterator[Part]:
    import polars as pl

    from posrec.data.source.readers.parquet import parquet_errors

    frame = scan_sessions(path)
    with parquet_errors(path):
        total, first = frame.select(pl.len()).collect().item(), 1
        batches = frame.collect_batches(chunk_size=PART_ROWS, maintain_order=True)
        for content in of_equal_height(batches, PART_ROWS):
            yield Part(first, content, len(content), total)
            first += len(content)


def scan_sessions(path: Path) -> "pl.LazyFrame":
    """The columns `session` and, where there is one, `id` of a Parquet file."""
    import polars as pl

    from posrec.data.source.readers.parquet import scan_parquet

    frame = scan_parquet(path)
    schema = frame.collect_schema()
    if not isinstance(schema.get("session"), pl.List | pl.Array):
        found = ", ".join(f"{name} ({kind})" for name, kind in schema.items())
        raise InputError(f"{path} must have a column 'session' of lists of item ids; it has {found}")
    return frame.select(name for name in ("id", "session") if name in schema)


def id_type_of(path: Path) -> "pl.DataType":
    """The type of `id` in a Parquet output. Ids in JSON can be of many types, so they become text."""
    import polars as pl

    if kind_of(path) != "parquet":
        return pl.String()
    return scan_sessions(path).collect_schema().get("id", pl.Int64())


def of_equal_height(frames: "Iterable[pl.DataFrame]", rows: int) -> "Iterator[pl.DataFrame]":
    """The same rows in frames of `rows` each, since polars keeps to the size that it is asked for only roughly."""
    import polars as pl

    rest = None
    for frame in frames:
        rest = frame if rest is None else pl.concat([rest, frame])
        while len(rest) >= rows:
            yield rest[:rows]
            rest = rest[rows:]
    if rest is not None and len(rest):
        yield rest


def place_name(path: Path, place: int) -> str:
    """What error messages call a session of the file: "sessions.jsonl, line 3"."""
    return f"{path}, {'row' if kind_of(path) == 'parquet' else 'line'} {place}"


def parse(part: Part, path: Path) -> list[SessionRow]:
    """The sessions of a part of the file `path`, which errors name; blank lines are left out."""
    if isinstance(part.content, list):
        numbered = enumerate(part.content, start=part.first)
        return [parse_line(place, line, path) for place, line in numbered if line.strip()]
    frame, first = part.content, part.first
    ids = frame["id"].to_list() if "id" in frame.columns else range(first, first + len(frame))
    pairs = enumerate(zip(ids, frame["session"].to_list(), strict=True), start=first)
    return [SessionRow(place, *row) for place, row in pairs]


def parse_line(place: int, line: bytes, path: Path) -> SessionRow:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # JSON, too deep, or not UTF-8
        raise InputError(f"{path}, line {place}: the line is not JSON ({error}); fix or remove the line") from None
    if isinstance(value, dict) and "session" in value:
        if unknown := [name for name in value if name not in ("id", "session")]:
            raise InputError(
                f"{path}, line {place}: there is no field {unknown[0]!r}; a line has a session and may have an id, and "
                "everything else is an option of the command"
            )
        return SessionRow(place, value.get("id", place), value["session"])
    if isinstance(value, list):
        return SessionRow(place, place, value)
    raise InputError(
        f'{path}, line {place}: the line is neither {{"session": [...]}} nor a list; fix or remove the line'
    )


def kind_of(path: Path) -> str:
    name = path.name.lower()
    for kind, endings in (("lines", JSON_LINES), ("parquet", PARQUET)):
        if name.endswith(endings):
            return kind
    raise InputError(
        f"{path}: the file name must end in .jsonl, .jsonl.gz, .jsonl.zst or .parquet, which tells its format"
    )
