"""Formats of whole sessions: lines of item ids, RecBole's prefixes, and SR-GNN's pickles."""

import io
import pickle
import pickletools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import polars as pl

from posrec.data.source.blocks import Block, blocks
from posrec.data.source.files import File, read_start
from posrec.data.source.readers.clicks import (
    Broken,
    ClickCollector,
    LineFormat,
    Row,
    add_block,
)
from posrec.data.source.readers.columns import Columns, comma_separated, id_fault
from posrec.data.source.readers.delimited import RECBOLE, split_header
from posrec.errors import InputError

PREFIX = "item_id_list"
TARGET = "item_id"
MAX_PICKLE_BYTES = 1 << 30  # the public datasets have a few hundred MiB
STORING = ("PUT", "BINPUT", "LONG_BINPUT")  # opcodes that store an object at an index


def read_sessions(files: Sequence[File], collector: ClickCollector) -> None:
    """A session a line, item ids separated by spaces, oldest click first, in order of time."""
    before = 0
    for block in blocks(files, collector.progress):
        add_block(block, SessionLines(before - block.first_line), collector)
        before += block.data.count(b"\n") + 1


@dataclass(frozen=True)
class SessionLines(LineFormat):
    """A session's number and time are `first` and the number of its line."""

    first: int
    columns = Columns(("session",), "item", "time")

    def parse(self, block: Block) -> tuple[pl.DataFrame, bool]:
        lines = pl.Series(
            "item", block.data.decode("utf-8").split("\n"), dtype=pl.String
        )
        lines = lines.str.replace_all(r"[ \t\r]+", " ").str.strip_chars(" ")
        start = self.first + block.first_line
        number = pl.int_range(start, start + len(lines), eager=True)
        clicks = pl.DataFrame(
            {"session": number, "item": lines.str.split(" "), "time": number}
        )
        return clicks.filter(lines != "").explode("item"), False

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        if any(map(id_fault, text.split())):
            raise Broken("an item id is negative")
        number = str(self.first + line)
        return [(number, item, number) for item in text.split()]


def read_prefixes(files: Sequence[File], collector: ClickCollector) -> None:
    """The files that RecBole reads by `benchmark_filename`, e.g. NAME.train.inter.

    `session_id` may number rows, not sessions, so a session is found by its rows: every prefix of
    it, the longest or the shortest first. A session's time is its place in the log.
    """
    before = 0
    for path, parts in groupby(blocks(files, collector.progress), attrgetter("path")):
        clicks = join_prefixes(path, read_rows(path, parts)).with_columns(
            pl.col("session") + before
        )
        collector.keep(collector.check(clicks.with_columns(time=pl.col("session"))))
        before += clicks["session"].n_unique()


def read_rows(path: File, parts: Iterable[Block]) -> pl.DataFrame:
    """The line, the prefix and the target of every row."""
    names: list[str] = []
    rows: list[tuple[int, str, str]] = []
    for part in parts:
        block = part
        if part.first_line == 1:
            names, block = split_header(part, RECBOLE)
            if PREFIX not in names or TARGET not in names:
                raise InputError(
                    f"{path}, line 1: prefixes of sessions need the columns {PREFIX} and {TARGET}; it has "
                    f"{comma_separated(names)}"
                )
        for number, line in enumerate(block.data.split(b"\n"), start=block.first_line):
            try:
                if line.strip():
                    rows.append((number, *split_row(line.decode("utf-8"), names)))
            except UnicodeDecodeError:
                raise InputError(
                    f"{path}, line {number}: not UTF-8 text; convert the file first"
                ) from None
            except Broken as fault:
                raise InputError(
                    f"{path}, line {number}: {fault.reason}; fix the line"
                ) from None
    return pl.DataFrame(
        rows, {"line": pl.Int64, "prefix": pl.String, "target": pl.String}, orient="row"
    )


def split_row(line: str, names: list[str]) -> tuple[str, str]:
    """The prefix and the target of a row, ids separated by one space."""
    fields = line.split("\t")
    if len(fields) != len(names):
        raise Broken(f"there must be {len(names)} fields, a tab between them")
    prefix, target = (fields[names.index(name)].split() for name in (PREFIX, TARGET))
    if not prefix or len(target) != 1:
        raise Broken(
            f"{PREFIX} must hold item ids, separated by spaces, and {TARGET} one item id"
        )
    if any(map(id_fault, [*prefix, *target])):
        raise Broken("an item id is negative")
    return " ".join(prefix), target[0]


def join_prefixes(path: File, rows: pl.DataFrame, unit: str = "line") -> pl.DataFrame:
    """The clicks of the sessions that rows of `line`, `prefix` and `target` come from.

    Prefixes may be cut to their latest clicks (50 in RecBole's files): a prefix is then the row
    before it without its first click. A session is its first click and the targets of its rows.
    """
    before = pl.concat_str("prefix", "target", separator=" ").shift()
    continues = (pl.col("prefix") == before) | (
        pl.col("prefix") == before.str.replace(r"^\S+ ", "")
    )
    failures = []
    for longest_first in (True, False):
        ordered = rows.reverse() if longest_first else rows
        first = ~ordered["prefix"].str.contains(" ")
        broken = ordered.filter(
            ~(first | ordered.select(continues.fill_null(False)).to_series())
        )
        if len(broken):
            failures.append(
                (
                    len(broken),
                    int(broken["line"].to_numpy().min()),
                    "below" if longest_first else "above",
                )
            )
            continue
        number = first.cum_sum().cast(pl.Int64) - 1
        clicks = ordered.select(
            session=first.sum() - 1 - number if longest_first else number,
            item=pl.when(first)
            .then(pl.concat_list("prefix", "target"))
            .otherwise(pl.concat_list("target")),
        )
        return clicks.explode("item").sort("session", maintain_order=True)
    _, line, place = min(failures)
    raise InputError(
        f"{path}, {unit} {line}: the row {place} it is not the next shorter prefix of the same session; only files "
        "that hold every prefix of each session, one below the other, can be read"
    )


def read_srgnn(files: Sequence[File], collector: ClickCollector) -> None:
    """The pickles that SR-GNN's preprocessing writes."""
    sequences = [sequence for path in files for sequence in read_pickle(path)]
    frame = pl.DataFrame(
        {"item": sequences}, schema={"item": pl.List(pl.Int64)}
    ).with_row_index("session")
    collector.keep(
        collector.check(
            frame.explode("item").with_columns(time=pl.col("session").cast(pl.Int64))
        )
    )


class PlainUnpickler(pickle.Unpickler):
    """Refuses everything that a pickle looks up by name, and therefore every call."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def load_plain(data: bytes) -> Any:
    """A pickle of plain lists and ints, whose size is bounded by that of the file."""
    for opcode, argument, _ in pickletools.genops(data):
        # Python allocates memory for all indices below the highest one.
        if opcode.name in STORING and (argument or 0) > len(data):
            raise pickle.UnpicklingError(f"it stores something at index {argument}")
    content = PlainUnpickler(io.BytesIO(data)).load()
    refuse_sharing(content, len(data))
    return content


def read_pickle(path: File) -> list[list[int]]:
    """The file holds a list of sessions or SR-GNN's pair (prefixes, targets)."""
    data = read_start(path, MAX_PICKLE_BYTES + 1)
    if len(data) > MAX_PICKLE_BYTES:
        raise InputError(
            f"{path} is larger than {MAX_PICKLE_BYTES >> 20} MiB; write it as lines, for --format sessions"
        )
    try:
        content = load_plain(data)
    except Exception as error:  # a damaged pickle can raise almost anything
        reason = f": {error}" if isinstance(error, pickle.UnpicklingError) else ""
        raise InputError(
            f"{path} is not a pickle of plain lists and ints{reason}; it was not loaded"
        ) from None
    if isinstance(content, tuple | list) and len(content) == 2 and is_samples(*content):
        return join_samples(path, *content)
    if not isinstance(content, tuple | list) or not all(
        is_sequence(sequence) for sequence in content
    ):
        raise InputError(
            f"{path} holds neither a list of sessions nor a pair (prefixes, targets), of ints from 0 up; "
            "it was not used"
        )
    return [list(sequence) for sequence in content]


def refuse_sharing(content: Any, size: int) -> None:
    """Refuse sessions longer, written out, than the file, which refers to a list many times."""
    for part in (content, *content[:2]) if isinstance(content, tuple | list) else ():
        if (
            isinstance(part, tuple | list)
            and sum(len(one) for one in part if isinstance(one, tuple | list)) > size
        ):
            raise pickle.UnpicklingError("it repeats the same list too often")


def is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(
        type(item) is int and 0 <= item < 2**63 for item in value
    )


def is_samples(prefixes: Any, targets: Any) -> bool:
    return (
        isinstance(prefixes, tuple | list)
        and is_sequence(targets)
        and len(prefixes) == len(targets)
        and all(is_sequence(prefix) and prefix for prefix in prefixes)
    )


def join_samples(
    path: File, prefixes: list[list[int]], targets: list[int]
) -> list[list[int]]:
    """Undo the field's augmentation, which writes a session as all its prefixes."""
    texts = (
        pl.Series(prefixes, dtype=pl.List(pl.Int64))
        .cast(pl.List(pl.String))
        .list.join(" ")
    )
    rows = pl.DataFrame(
        {"prefix": texts, "target": pl.Series(targets, dtype=pl.Int64).cast(pl.String)}
    )
    clicks = join_prefixes(path, rows.with_row_index("line", offset=1), "sample")
    return (
        clicks.group_by("session", maintain_order=True)
        .agg(pl.col("item").cast(pl.Int64))["item"]
        .to_list()
    )
