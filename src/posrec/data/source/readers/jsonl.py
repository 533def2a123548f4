"""JSON lines: an event a line, as analytics tools export them, or a session a line (OTTO).

A nested field is named by its path: `item.id`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from typing import Any

import polars as pl

from posrec.data.source.blocks import Block, blocks
from posrec.data.source.files import File
from posrec.data.source.readers.clicks import (
    Broken,
    ClickCollector,
    LineFormat,
    Row,
    add_block,
)
from posrec.data.source.readers.columns import Columns, MissingColumn, id_fault
from posrec.errors import InputError

EXAMPLE = '{"session_id": "s1", "item_id": "sku-1", "timestamp": 1700000000}'
EXAMINED_LINES = 1000  # of a block: events of different kinds have different fields
OTTO_EXAMPLE = '{"session": 1, "events": [{"aid": 2, "ts": 3, "type": "clicks"}]}'
OTTO_EVENT = pl.Struct({"aid": pl.String, "ts": pl.Int64, "type": pl.String})
OTTO_SCHEMA = pl.Schema({"session": pl.String(), "events": pl.List(OTTO_EVENT)})
FieldPath = tuple[str, ...]


def read_jsonl(files: Sequence[File], collector: ClickCollector) -> None:
    """Ids may be text or whole numbers, times text or numbers."""
    format = EventLines(*find_columns(collector))
    for block in blocks(files, collector.progress):
        add_block(block, format, collector)


def find_columns(collector: ClickCollector) -> tuple[dict[str, FieldPath], Columns]:
    """Blocks are read until no column is missing: an hour of searches may lack one."""
    files = collector.whole_log
    named = list(chain.from_iterable(collector.options.named_columns().values()))
    fields: dict[str, FieldPath] = {}
    for block in blocks(files, collector.progress):
        add_fields(fields, block, named)
        with suppress(MissingColumn):
            return fields, collector.choose_columns(block.path, list(fields))
    name = str(files[0])
    if len(files) > 1:
        name += f" (and {len(files) - 1} more)"
    if not fields:
        raise InputError(
            f"{name}: none of the first lines is a JSON object such as {EXAMPLE}"
        )
    return fields, collector.choose_columns(name, list(fields))


def add_fields(fields: dict[str, FieldPath], block: Block, named: list[str]) -> None:
    """Add the fields of the first lines, and of others with a missing `named` column."""
    keys = {
        name: json.dumps(name.rpartition(".")[2], ensure_ascii=False).encode()
        for name in named
    }
    for number, line in enumerate(block.data.split(b"\n")):
        missing = [keys[name] for name in named if name not in fields]
        if number >= EXAMINED_LINES and not any(key in line for key in missing):
            continue
        # Broken lines and text that is not UTF-8 are reported later.
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                fields |= flatten(event)


def flatten(event: dict[str, Any], before: FieldPath = ()) -> dict[str, FieldPath]:
    """{"a": 1, "b": {"c": 2}} -> {"a": ("a",), "b.c": ("b", "c")}. Lists are not looked into."""
    fields: dict[str, FieldPath] = {}
    for name, value in event.items():
        path = (*before, name)
        if isinstance(value, dict):
            fields |= flatten(value, path)
        else:
            fields[".".join(path)] = path
    return fields


@dataclass(frozen=True)
class EventLines(LineFormat):
    fields: dict[str, FieldPath]
    columns: Columns

    def parse(self, block: Block) -> pl.DataFrame:
        paths = {name: self.fields[name] for name in self.columns.names}
        schema = pl.Schema(types_of(paths.values()))
        events = pl.read_ndjson(BytesIO(block.data), schema=schema)
        return events.select(field(path).alias(name) for name, path in paths.items())

    def is_suspect(self, block: Block, rows: pl.DataFrame) -> bool:
        """Whether an id may be a number with a point, an object or a list."""
        keys = [self.fields[name][-1] for name in self.columns.ids]
        ids = (rows[name] for name in self.columns.ids)
        is_nested = (column.str.contains(r"^[\[{]").any() for column in ids)
        return has_inexact(block, keys) or any(is_nested)

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        try:
            event = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Broken(f"not JSON ({error})") from None
        if not isinstance(event, dict):
            raise Broken(f"not an object such as {EXAMPLE}")
        row: list[str | None] = []
        for name in self.columns.names:
            value = value_at(event, self.fields[name])
            if name in self.columns.ids and isinstance(
                value, bool | float | list | dict
            ):
                text = json.dumps(value)
                raise Broken(f"column {name!r} is {text}, not text or a whole number")
            row.append(value if isinstance(value, str | None) else json.dumps(value))
        return [row]


def has_inexact(block: Block, keys: Iterable[str]) -> bool:
    """Whether there may be a number with a point, which polars does not keep as written."""
    number = rb'"\s*:\s*-?\d+[.eE]'
    patterns = (b'"' + re.escape(key.encode()) + number for key in keys)
    return any(re.search(pattern, block.data) for pattern in patterns)


def types_of(paths: Iterable[FieldPath]) -> dict[str, pl.DataType]:
    """A text at the end of each path."""
    below: dict[str, list[FieldPath]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    return {
        name: pl.Struct(types_of(rest)) if all(rest) else pl.String()
        for name, rest in below.items()
    }


def field(path: FieldPath) -> pl.Expr:
    column = pl.col(path[0])
    for step in path[1:]:
        column = column.struct.field(step)
    return column


def value_at(event: Any, path: FieldPath) -> Any:
    for step in path:
        event = event.get(step) if isinstance(event, dict) else None
    return event


def read_otto(files: Sequence[File], collector: ClickCollector) -> None:
    collector.events.column = OttoLines.columns.event
    for block in blocks(files, collector.progress):
        add_block(block, OttoLines(), collector)


class OttoLines(LineFormat):
    columns = Columns(("session",), "aid", "ts", "type")

    def parse(self, block: Block) -> pl.DataFrame:
        sessions = pl.read_ndjson(BytesIO(block.data), schema=OTTO_SCHEMA)
        return sessions.explode("events").unnest("events")

    def is_suspect(self, block: Block, rows: pl.DataFrame) -> bool:
        return has_inexact(block, ["aid", "session"])

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        try:
            session = json.loads(text)
            rows = [
                (session["session"], event["aid"], event["ts"], event.get("type"))
                for event in session["events"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Broken(f"not a session in OTTO's format, {OTTO_EXAMPLE}") from None
        ids = [value for row in rows for value in row[:2]]
        if any(isinstance(value, float) for value in ids):
            raise Broken(
                "a session or aid is a number with a point or exponent",
                "write it as text",
            )
        if any(map(id_fault, ids)):
            raise Broken("a session or aid is missing or negative")
        if any(type(time) is not int for _, _, time, _ in rows):
            raise Broken("a ts is not a whole number of milliseconds")
        return [(*map(str, row[:3]), row[3]) for row in rows]
