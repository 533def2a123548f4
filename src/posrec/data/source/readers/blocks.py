"""Blocks of lines -> clicks. A block that has broken lines is parsed again without them.

Whole blocks are parsed at once, which is fast and does not say which line is wrong. Only if something is wrong are the
lines of the block looked at one by one.
"""

from collections.abc import Callable, Iterator

import polars as pl

from posrec.data.source.readers.bad_lines import BadLine
from posrec.data.source.readers.clicks import BadTimes, ClickCollector
from posrec.data.source.sources import Block
from posrec.errors import InputError

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


def find_broken_text(block: Block) -> Iterator[BadLine]:
    """The lines that are not UTF-8."""
    for number, line in enumerate(block.data.split(b"\n"), start=block.first_line):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", errors="replace")
            yield BadLine(str(block.path), number, "not UTF-8 text", text, "convert the file first")
