"""OTTO's JSON lines: a session and its events in each line."""

import json
import re
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path

import polars as pl

from posrec.data.readers.clicks import BadTimes, ClickCollector, ParsedLog, id_fault
from posrec.data.readers.columns import LogOptions
from posrec.data.sources import Block, blocks, decode
from posrec.errors import InputError
from posrec.progress import Progress

EXAMPLE = '{"session": 1, "events": [{"aid": 2, "ts": 3, "type": "clicks"}]}'
EVENT = pl.Struct({"aid": pl.String, "ts": pl.Int64, "type": pl.String})
SCHEMA = pl.Schema({"session": pl.String(), "events": pl.List(EVENT)})
INEXACT_ID = re.compile(rb'"(?:aid|session)"\s*:\s*-?\d+[.eE]')  # polars would not keep such an id as it is written


def read_otto(files: Sequence[Path], options: LogOptions, progress: Progress) -> ParsedLog:
    """Clicks alone are read unless --events asks for others."""
    collector = ClickCollector(progress, options.events or ("clicks",), "ms")
    for block in blocks(files, progress):
        raise_for_row = partial(raise_for_line, block)
        if INEXACT_ID.search(block.data):
            raise_for_row(0, {})
        try:
            sessions = pl.read_ndjson(BytesIO(block.data), schema=SCHEMA)
        except pl.exceptions.PolarsError as error:
            raise_for_row(0, {})
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{block.path}, from line {block.first_line}: {reason}") from None
        events = sessions.explode("events").unnest("events")
        collector.add(events.rename({"aid": "item", "ts": "time", "type": "event"}), raise_for_row)
    return collector.parsed_log()


def raise_for_line(block: Block, row: int | None, _: BadTimes) -> None:
    """Raise for the first line that is not a session of events."""
    for number, line in enumerate(decode(block).split("\n"), start=block.first_line):
        if not line.strip():
            continue
        where = f"{block.path}, line {number}"
        try:
            session = json.loads(line)
            ids = [session["session"], *(event["aid"] for event in session["events"])]
            times = [event["ts"] for event in session["events"]]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{where}: not a session in OTTO's format, {EXAMPLE}") from None
        if any(isinstance(value, float) for value in ids):
            raise InputError(f"{where}: a session or aid is a number with a point or exponent; write it as text")
        if any(id_fault(value) for value in ids):
            raise InputError(f"{where}: a session or aid is missing or negative; fix or remove the line")
        if any(type(value) is not int for value in times):
            raise InputError(f"{where}: a ts is not a whole number of milliseconds; fix or remove the line")
    if row is not None:
        raise InputError(f"{block.path}, from line {block.first_line}: a line is not in OTTO's format, {EXAMPLE}")
