"""JSON lines with one event a line, as analytics tools export them. A nested field is named by its path: `item.id`."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import polars as pl

from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.blocks import add_block
from posrec.data.source.readers.clicks import BadTimes, ClickCollector, id_fault, session_id
from posrec.data.source.readers.columns import Columns, choose_columns
from posrec.data.source.readers.textlog import TIMES
from posrec.data.source.remote import File
from posrec.data.source.sources import Block, blocks
from posrec.errors import InputError

EXAMPLE = '{"session_id": "s1", "item_id": "sku-1", "timestamp": 1700000000}'
LOOKED_AT = 1000  # lines in which fields are looked for; analytics events of different kinds have different fields
FieldPath = tuple[str, ...]


def read_jsonl(files: Sequence[File], collector: ClickCollector) -> None:
    """Every line is an object; ids may be text or whole numbers, times text or numbers."""
    log = EventBlocks({}, Columns((), "", ""), ())
    for block in blocks(files, collector.progress):
        if block.first_line == 1:
            fields = fields_of(block)
            columns = choose_columns(block.path, list(fields), collector.options, collector.progress)
            collector.events.column = columns.event
            collector.by_user |= columns.by_user
            log = EventBlocks(fields, columns, collector.events.read)
        if block.data.strip():
            add_block(block, log.parse, log.find_broken, collector, f"a line is not an object such as {EXAMPLE}")


def fields_of(block: Block) -> dict[str, FieldPath]:
    """The fields of the first events, by name."""
    found: dict[str, FieldPath] = {}
    for line in block.data.split(b"\n", LOOKED_AT)[:LOOKED_AT]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # a broken line, which is reported later; or text that is not UTF-8
            continue
        if isinstance(event, dict):
            found |= flatten(event)
    if not found:
        raise InputError(f"{block.path}: none of the first lines is a JSON object such as {EXAMPLE}")
    return found


def flatten(event: dict[str, Any], before: FieldPath = ()) -> dict[str, FieldPath]:
    """{"a": 1, "b": {"c": 2}} -> {"a": ("a",), "b.c": ("b", "c")}. Lists are not looked into."""
    fields: dict[str, FieldPath] = {}
    for name, value in event.items():
        path = (*before, name)
        fields |= flatten(value, path) if isinstance(value, dict) else {".".join(path): path}
    return fields


@dataclass(frozen=True)
class EventBlocks:
    """How the blocks of a file are parsed, and searched for broken lines; `events` are the kinds that are read."""

    fields: dict[str, FieldPath]
    columns: Columns
    events: Sequence[str]

    def names(self) -> list[str]:
        return [*self.columns.session, *self.columns.one_each().values()]

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        tree: dict[str, Any] = {}
        for name in self.names():
            *outer, last = self.fields[name]
            branch = tree
            for step in outer:
                branch = branch.setdefault(step, {})
            branch[last] = pl.String()
        events = pl.read_ndjson(BytesIO(block.data), schema=pl.Schema(as_types(tree)))
        flat = events.select(field(self.fields[name]).alias(name) for name in self.names())
        others = (pl.col(name).alias(role) for role, name in self.columns.one_each().items())
        rows = flat.select(session_id(self.columns.session).alias("session"), *others)
        return rows, self.has_other_ids(block, flat)

    def has_other_ids(self, block: Block, flat: pl.DataFrame) -> bool:
        """Whether an id may be a number with a point, which polars would not keep as written, or a list or object."""
        for _, name in self.columns.ids():
            inexact = rb'"' + re.escape(self.fields[name][-1].encode()) + rb'"\s*:\s*-?\d+[.eE]'
            if re.search(inexact, block.data) or flat[name].str.contains(r"^[\[{]").any():
                return True
        return False

    def find_broken(self, block: Block, bad_times: BadTimes) -> Iterator[BadLine]:
        for number, line in enumerate(block.data.decode("utf-8").split("\n"), start=block.first_line):
            if line.strip() and (fault := self.fault(line, bad_times)):
                yield BadLine(str(block.path), number, fault[0], line.rstrip("\r"), fault[1])

    def fault(self, line: str, bad_times: BadTimes) -> tuple[str, str] | None:
        """What is wrong with a line and what to do about it; None if nothing is."""
        fix = "fix or remove the line"
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            return f"not JSON ({error})", fix
        if not isinstance(event, dict):
            return f"not an object such as {EXAMPLE}", fix
        columns = self.columns
        if columns.event is not None and self.events and value_at(event, self.fields[columns.event]) not in self.events:
            return None
        for role, name in columns.ids():
            value = value_at(event, self.fields[name])
            if fault := id_fault(value):
                return f"the {role} (field {name!r}) {fault}", fix
            if not isinstance(value, str | int) or isinstance(value, bool):
                return f"the {role} (field {name!r}) is {json.dumps(value)}, not text or a whole number", fix
        time = value_at(event, self.fields[columns.time])
        if time is None or time == "" or as_text(time) in bad_times.get("time", ()):
            return f"{time!r} in field {columns.time!r} is not a time", TIMES
        return None


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


def as_text(value: Any) -> str:
    """A value as polars reads it into a column of text."""
    return value if isinstance(value, str) else json.dumps(value)
