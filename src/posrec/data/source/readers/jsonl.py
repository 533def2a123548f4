"""JSON lines: one event a line, as analytics tools export them, or a session and its events in each (OTTO).

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

from posrec.data.source.blocks import START_BYTES, Block, blocks, read_start
from posrec.data.source.files import File
from posrec.data.source.readers.clicks import BadTimes, ClickCollector, Fault, LineFormat, add_block, find_fault
from posrec.data.source.readers.columns import Columns, MissingColumn, id_fault
from posrec.errors import InputError

EXAMPLE = '{"session_id": "s1", "item_id": "sku-1", "timestamp": 1700000000}'
# In which fields are looked for, of the first file and of others: events of different kinds have different fields.
EXAMINED_LINES, EXAMINED_LATER = 1000, 100
OTTO_EXAMPLE = '{"session": 1, "events": [{"aid": 2, "ts": 3, "type": "clicks"}]}'
OTTO_EVENT = pl.Struct({"aid": pl.String, "ts": pl.Int64, "type": pl.String})
OTTO_SCHEMA = pl.Schema({"session": pl.String(), "events": pl.List(OTTO_EVENT)})
FieldPath = tuple[str, ...]


def read_jsonl(files: Sequence[File], collector: ClickCollector) -> None:
    """Every line is an object; ids may be text or whole numbers, times text or numbers."""
    fields, columns = find_columns(collector)
    for block in blocks(files, collector.progress):
        add_block(block, EventLines(fields, columns, collector.events.read), collector)


def find_columns(collector: ClickCollector) -> tuple[dict[str, FieldPath], Columns]:
    """The fields and the columns of the whole log. JSON lines have no schema: an hour of searches alone may lack a
    column that other hours have. So the beginning of each file is looked at, then all of it, until none is missing."""
    files, fields = collector.whole_log, dict[str, FieldPath]()
    beginnings = (Block(path, read_start(path, START_BYTES), 1) for path in files)
    for number, block in enumerate(chain(beginnings, blocks(files, collector.progress))):
        examined = EXAMINED_LINES if number == 0 else EXAMINED_LATER if number < len(files) else 0
        add_fields(fields, block, examined, collector.options.columns().values())
        with suppress(MissingColumn):
            return fields, collector.choose_columns(block.path, list(fields))
    name = f"{files[0]}{f' (and {len(files) - 1} more)' if len(files) > 1 else ''}"
    if not fields:
        raise InputError(f"{name}: none of the first lines is a JSON object such as {EXAMPLE}")
    return fields, collector.choose_columns(name, list(fields))


def add_fields(fields: dict[str, FieldPath], block: Block, examined: int, named: Iterable[Sequence[str]]) -> None:
    """Add the fields of the first `examined` lines, and of others that may have a column that was `named` and was not
    found yet."""
    missing = [name for name in chain.from_iterable(named) if name not in fields]
    keys = {name: json.dumps(name.rpartition(".")[2], ensure_ascii=False).encode() for name in missing}
    for number, line in enumerate(block.data.split(b"\n")):
        if number >= examined and not any(key in line for name, key in keys.items() if name not in fields):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # a broken line, which is reported later; or text that is not UTF-8
            continue
        if isinstance(event, dict):
            fields |= flatten(event)


def flatten(event: dict[str, Any], before: FieldPath = ()) -> dict[str, FieldPath]:
    """{"a": 1, "b": {"c": 2}} -> {"a": ("a",), "b.c": ("b", "c")}. Lists are not looked into."""
    fields: dict[str, FieldPath] = {}
    for name, value in event.items():
        path = (*before, name)
        fields |= flatten(value, path) if isinstance(value, dict) else {".".join(path): path}
    return fields


@dataclass(frozen=True)
class EventLines(LineFormat):
    """An event in each line; `events` are the kinds that are read."""

    fields: dict[str, FieldPath]
    columns: Columns
    events: Sequence[str]
    advice = f"a line is not an object such as {EXAMPLE}"

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        names = self.columns.names
        tree: dict[str, Any] = {}
        for name in names:
            *outer, last = self.fields[name]
            branch = tree
            for step in outer:
                branch = branch.setdefault(step, {})
            branch[last] = pl.String()
        events = pl.read_ndjson(BytesIO(block.data), schema=pl.Schema(as_types(tree)))
        flat = events.select(field(self.fields[name]).alias(name) for name in names)
        ids = [name for _, name in self.columns.ids()]
        has_other_ids = has_inexact(block, *(self.fields[name][-1] for name in ids)) or any(
            flat[name].str.contains(r"^[\[{]").any() for name in ids
        )
        return flat.select(self.columns.select()), has_other_ids

    def fault(self, line: str, bad_times: BadTimes) -> Fault | None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            return f"not JSON ({error})", ""
        if not isinstance(event, dict):
            return f"not an object such as {EXAMPLE}", ""

        def value_of(name: str) -> Any:
            return value_at(event, self.fields[name])

        fault = find_fault(value_of, self.columns, bad_times, self.events)
        for role, name in self.columns.ids() if fault is None else ():
            value = value_of(name)
            if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
                return f"the {role} (column {name!r}) is {json.dumps(value)}, not text or a whole number", ""
        return fault


def has_inexact(block: Block, *fields: str) -> bool:
    """Whether one of these fields may be a number with a point, which polars would not keep as it is written."""
    return any(re.search(rb'"' + re.escape(name.encode()) + rb'"\s*:\s*-?\d+[.eE]', block.data) for name in fields)


def as_types(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: pl.Struct(as_types(below)) if isinstance(below, dict) else below for name, below in tree.items()}


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
    """Clicks alone are read unless --events asks for others."""
    collector.events.column = "type"
    for block in blocks(files, collector.progress):
        add_block(block, OttoLines(), collector)


class OttoLines(LineFormat):
    """A session and its events in each line."""

    advice = f"a line is not in OTTO's format, {OTTO_EXAMPLE}"

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        sessions = pl.read_ndjson(BytesIO(block.data), schema=OTTO_SCHEMA)
        events = sessions.explode("events").unnest("events")
        rows = events.rename({"aid": "item", "ts": "time", "type": "event"})
        return rows, has_inexact(block, "aid", "session")

    def fault(self, line: str, bad_times: BadTimes) -> Fault | None:
        try:
            session = json.loads(line)
            ids = [session["session"], *(event["aid"] for event in session["events"])]
            times = [event["ts"] for event in session["events"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"not a session in OTTO's format, {OTTO_EXAMPLE}", ""
        if any(isinstance(value, float) for value in ids):
            return "a session or aid is a number with a point or exponent", "write it as text"
        if any(id_fault(value) for value in ids):
            return "a session or aid is missing or negative", ""
        if any(type(value) is not int for value in times):
            return "a ts is not a whole number of milliseconds", ""
        return None
