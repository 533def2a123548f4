"""Blocks of lines -> clicks. A block that has broken lines is parsed again without them.

Whole blocks are parsed at once, which is fast and does not say which line is wrong. Only if something is wrong are the
lines of the block looked at one by one, and the faults of each are described.
"""

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from posrec.data.source.blocks import Block
from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.clicks import BadTimes, ClickCollector, id_fault
from posrec.data.source.readers.columns import Columns
from posrec.data.source.readers.times import parse_text
from posrec.errors import InputError

SHOWN_CHARACTERS = 80  # of a value in a message
TIMES = (
    "write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds, or describe it with --time-format"
)

# What is wrong with a line or row, and what to do about it where that is more than to fix or remove it.
Fault = tuple[str, str]

# The rows of a block, and whether its lines should be looked at even if every row seems right.
Parse = Callable[[Block], tuple[pl.DataFrame, bool]]
# The broken lines of a block, given the texts that could not be read as times.
FindBroken = Callable[[Block, BadTimes], Iterator[BadLine]]


def add_block(block: Block, parse: Parse, find_broken: FindBroken, collector: ClickCollector, advice: str) -> None:
    """Add the clicks of a block to the collector, and its broken lines to its `bad_lines`.

    `advice` is for a block that can't be parsed although each of its lines looks right.
    """
    while True:
        try:
            rows, suspect = parse(block)
        except (pl.exceptions.PolarsError, UnicodeDecodeError):
            checked, broken = None, list(find_broken_text(block)) or list(find_broken(block, {}))
        else:
            checked = collector.check(rows)
            if not (suspect or checked.suspect):
                break
            broken = list(find_broken(block, checked.bad_times))
            if len(broken) == len(checked.bad_rows):  # or neither: blank lines alone
                collector.leave_out(broken, checked)
                break
        if not broken:
            last = block.first_line + block.data.rstrip().count(b"\n")
            raise InputError(f"{block.path}, between lines {block.first_line} and {last}: {advice}")
        collector.leave_out(broken, checked)
        block = without(block, broken)
    collector.keep(checked)


def without(block: Block, broken: list[BadLine]) -> Block:
    """The block with these lines made blank, so that the other lines keep their numbers."""
    lines = block.data.split(b"\n")
    for bad in broken:
        lines[bad.number - block.first_line] = b""
    return Block(block.path, b"\n".join(lines), block.first_line)


def describe_lines(block: Block, fault_of: Callable[[str], Fault | None]) -> Iterator[BadLine]:
    """The broken ones among the lines of a format in which every line is a record, but for blank lines."""
    for number, line in enumerate(block.data.decode("utf-8").split("\n"), start=block.first_line):
        if line.strip() and (fault := fault_of(line)):
            yield BadLine(str(block.path), number, fault[0], line.rstrip("\r"), fault[1])


def find_fault(
    value_of: Callable[[str], Any], columns: Columns, is_bad_time: Callable[[str, Any], bool], name_for: str = "column"
) -> Fault | None:
    """What is wrong with a record, given the value of each of its columns, or fields as a format calls them."""
    for role, name in columns.ids():
        if fault := id_fault(value_of(name)):
            return f"the {role} ({name_for} {name!r}) {fault}", ""
    for role, name in columns.times():
        value = value_of(name)
        if value is None or value == "" or is_bad_time(role, value):
            shown = repr(f"{value[:SHOWN_CHARACTERS]}..." if len(str(value)) > SHOWN_CHARACTERS else value)
            if is_iso(str(value)):
                message = f"{shown} in {name_for} {name!r} is not a number, unlike the times before it"
                return message, "write all times in one way"
            return f"{shown} in {name_for} {name!r} is not a time", TIMES
    return None


def is_iso(text: str) -> bool:
    """Whether a text that was not read as a time is one; then the times around it are numbers."""
    return text.strip()[:4].isdigit() and parse_text(pl.Series([text], dtype=pl.String)).null_count() == 0


def find_broken_text(block: Block) -> Iterator[BadLine]:
    """The lines that are not UTF-8."""
    for number, line in enumerate(block.data.split(b"\n"), start=block.first_line):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", errors="replace")
            yield BadLine(str(block.path), number, "not UTF-8 text", text, "convert the file first")
