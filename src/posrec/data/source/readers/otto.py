"""OTTO's JSON lines: a session and its events in each line."""

import json
import re
from collections.abc import Iterator, Sequence
from io import BytesIO

import polars as pl

from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.blocks import add_block
from posrec.data.source.readers.clicks import BadTimes, ClickCollector, id_fault
from posrec.data.source.remote import File
from posrec.data.source.sources import Block, blocks

EXAMPLE = '{"session": 1, "events": [{"aid": 2, "ts": 3, "type": "clicks"}]}'
EVENT = pl.Struct({"aid": pl.String, "ts": pl.Int64, "type": pl.String})
SCHEMA = pl.Schema({"session": pl.String(), "events": pl.List(EVENT)})
INEXACT_ID = re.compile(rb'"(?:aid|session)"\s*:\s*-?\d+[.eE]')  # polars would not keep such an id as it is written


def read_otto(files: Sequence[File], collector: ClickCollector) -> None:
    """Clicks alone are read unless --events asks for others."""
    collector.events.column = "type"
    for block in blocks(files, collector.progress):
        add_block(block, parse, find_broken, collector, f"a line is not in OTTO's format, {EXAMPLE}")


def parse(block: Block) -> tuple[pl.DataFrame, bool]:
    sessions = pl.read_ndjson(BytesIO(block.data), schema=SCHEMA)
    events = sessions.explode("events").unnest("events")
    rows = events.rename({"aid": "item", "ts": "time", "type": "event"})
    return rows, INEXACT_ID.search(block.data) is not None


def find_broken(block: Block, _: BadTimes) -> Iterator[BadLine]:
    """The lines that are not a session of events."""
    for number, line in enumerate(block.data.decode("utf-8").split("\n"), start=block.first_line):
        if line.strip() and (fault := line_fault(line)):
            yield BadLine(str(block.path), number, *fault)


def line_fault(line: str) -> tuple[str, str, str] | None:
    """The reason, the line and what to do, if a line is not a session of events."""
    fix = "fix or remove the line"
    try:
        session = json.loads(line)
        ids = [session["session"], *(event["aid"] for event in session["events"])]
        times = [event["ts"] for event in session["events"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"not a session in OTTO's format, {EXAMPLE}", line, fix
    if any(isinstance(value, float) for value in ids):
        return "a session or aid is a number with a point or exponent", line, "write it as text"
    if any(id_fault(value) for value in ids):
        return "a session or aid is missing or negative", line, fix
    if any(type(value) is not int for value in times):
        return "a ts is not a whole number of milliseconds", line, fix
    return None
