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
    as_text,
)
from posrec.data.source.readers.columns import Columns, comma_separated, id_fault
from posrec.data.source.readers.delimited import RECBOLE
from posrec.errors import InputError

PREFIX = "item_id_list"
TARGET = "item_id"
MAX_PICKLE_BYTES = 1 << 30  # the public datasets have a few hundred MiB
STORING = ("PUT", "BINPUT", "LONG_BINPUT")  # opcodes that store an object at an index
LISTS = (tuple, list)


def read_sessions(files: Sequence[File], collector: ClickCollector) -> None:
    """A session a line, item ids separated by spaces, oldest click first, in order of time."""
    lines_before = 0
    for block in blocks(files, collector.progress):
        add_block(block, SessionLines(lines_before - block.first_line), collector)
        lines_before += block.data.count(b"\n") + 1


@dataclass(frozen=True)
class SessionLines(LineFormat):
    """A session's number and time are `first` plus the number of its line."""

    first: int
    columns = Columns(("session",), "item", "time")

    def parse(self, block: Block) -> pl.DataFrame:
        lines = pl.Series(block.data.decode("utf-8").split("\n"), dtype=pl.String)
        lines = lines.str.replace_all(r"[ \t\r]+", " ").str.strip_chars(" ")
        start = self.first + block.first_line
        number = pl.int_range(start, start + len(lines), eager=True)
        sessions = pl.DataFrame(
            {"session": number, "item": lines.str.split(" "), "time": number}
        )
        return sessions.filter(lines != "").explode("item")

    def read_record(self, text: str, line: int) -> Sequence[Row]:
        if any(map(id_fault, text.split())):
            raise Broken("an item id is negative")
        number = str(self.first + line)
        return [(number, item, number) for item in text.split()]


def add_numbered(clicks: pl.DataFrame, collector: ClickCollector) -> None:
    clicks = clicks.with_columns(time=pl.col("session").cast(pl.Int64))
    columns = SessionLines.columns
    collector.keep(collector.check(clicks, columns), str(collector.whole_log[0]))


def read_prefixes(files: Sequence[File], collector: ClickCollector) -> None:
    """The files that RecBole reads by `benchmark_filename`, e.g. NAME.train.inter.

    `session_id` may number rows, so a session is found by its rows: every prefix of it, the
    longest or the shortest first. A session's time is its position in the log.
    """
    sessions = 0
    all_blocks = blocks(files, collector.progress)
    for path, file_blocks in groupby(all_blocks, attrgetter("path")):
        clicks = join_prefixes(path, read_rows(path, file_blocks))
        add_numbered(clicks.with_columns(pl.col("session") + sessions), collector)
        sessions += clicks["session"].n_unique()


def read_rows(path: File, file_blocks: Iterable[Block]) -> pl.DataFrame:
    names: list[str] = []
    rows: list[tuple[int, str, str]] = []
    for block in file_blocks:
        if block.first_line == 1:
            names, block = RECBOLE.split_header(block)
            if PREFIX not in names or TARGET not in names:
                raise InputError(
                    f"{path}, line 1: prefixes of sessions need the columns {PREFIX} and {TARGET}; "
                    f"it has {comma_separated(names)}"
                )
        for number, line in enumerate(block.data.split(b"\n"), start=block.first_line):
            try:
                if line.strip():
                    rows.append((number, *split_row(as_text(line), names)))
            except Broken as fault:
                raise fault.at(path, number) from None
    schema = {"line": pl.Int64, "prefix": pl.String, "target": pl.String}
    return pl.DataFrame(rows, schema, orient="row")


def split_row(line: str, names: list[str]) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != len(names):
        raise Broken(f"there must be {len(names)} fields, a tab between them")
    prefix = fields[names.index(PREFIX)].split()
    target = fields[names.index(TARGET)].split()
    if not prefix or len(target) != 1:
        raise Broken(
            f"{PREFIX} must hold item ids, separated by spaces, and {TARGET} one item id"
        )
    if any(map(id_fault, prefix + target)):
        raise Broken("an item id is negative")
    return " ".join(prefix), target[0]


def join_prefixes(path: File, rows: pl.DataFrame, unit: str = "line") -> pl.DataFrame:
    """The clicks of the sessions that rows of `line`, `prefix` and `target` come from.

    Prefixes may be cut to their latest clicks (50 in RecBole's files): a prefix is then the row
    before it without its first click. A session is its first click and the targets of its rows.
    """
    row_before = pl.concat_str("prefix", "target", separator=" ").shift()
    cut = row_before.str.replace(r"^\S+ ", "")
    continues = (pl.col("prefix") == row_before) | (pl.col("prefix") == cut)
    failures = []
    # In a file with the longest prefix first, the row before is the one below.
    for neighbour, ordered in (("below", rows.reverse()), ("above", rows)):
        first = ~ordered["prefix"].str.contains(" ")
        joined = first | ordered.select(continues.fill_null(False)).to_series()
        if not joined.all():
            lines = ordered["line"].filter(~joined).to_list()
            failures.append((len(lines), min(lines), neighbour))
            continue
        session = first.cum_sum().cast(pl.Int64) - 1
        if neighbour == "below":
            session = first.sum() - 1 - session
        both = pl.concat_list("prefix", "target")
        item = pl.when(first).then(both).otherwise(pl.concat_list("target"))
        clicks = ordered.select(session=session, item=item).explode("item")
        return clicks.sort("session", maintain_order=True)
    _, line, neighbour = min(failures)
    raise InputError(
        f"{path}, {unit} {line}: the row {neighbour} it is not the next shorter prefix of the same "
        "session; only files that hold every prefix of each session, one below the other, "
        "can be read"
    )


def read_srgnn(files: Sequence[File], collector: ClickCollector) -> None:
    sequences = [sequence for path in files for sequence in read_pickle(path)]
    sessions = pl.DataFrame({"item": sequences}, schema={"item": pl.List(pl.Int64)})
    add_numbered(sessions.with_row_index("session").explode("item"), collector)


class PlainUnpickler(pickle.Unpickler):
    """Refuses what a pickle looks up by name, and therefore every call."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def load_plain(data: bytes) -> Any:
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
            f"{path} is larger than {MAX_PICKLE_BYTES >> 20} MiB; write it as lines, "
            "for --format sessions"
        )
    try:
        content = load_plain(data)
    except Exception as error:  # a damaged pickle can raise almost anything
        reason = f": {error}" if isinstance(error, pickle.UnpicklingError) else ""
        raise InputError(
            f"{path} is not a pickle of plain lists and ints{reason}; it was not loaded"
        ) from None
    if isinstance(content, LISTS):
        if len(content) == 2 and is_samples(*content):
            return join_samples(path, *content)
        if all(map(is_sequence, content)):
            return list(map(list, content))
    raise InputError(
        f"{path} holds neither a list of sessions nor a pair (prefixes, targets), "
        "of ints from 0 up; it was not used"
    )


def refuse_sharing(content: Any, size: int) -> None:
    """Refuse a file that refers to a list many times, so that its sessions are longer."""
    if not isinstance(content, LISTS):
        return
    for sessions in (content, *content[:2]):
        if not isinstance(sessions, LISTS):
            continue
        lengths = [len(items) for items in sessions if isinstance(items, LISTS)]
        if sum(lengths) > size:
            raise pickle.UnpicklingError("it repeats the same list too often")


def is_sequence(value: Any) -> bool:
    return isinstance(value, LISTS) and all(
        type(item) is int and 0 <= item < 2**63 for item in value
    )


def is_samples(prefixes: Any, targets: Any) -> bool:
    if not isinstance(prefixes, LISTS) or not is_sequence(targets):
        return False
    all_filled = all(is_sequence(prefix) and prefix for prefix in prefixes)
    return all_filled and len(prefixes) == len(targets)


def join_samples(
    path: File, prefixes: list[list[int]], targets: list[int]
) -> list[list[int]]:
    """Undo the field's augmentation, which writes a session as all its prefixes."""
    items = pl.Series(prefixes, dtype=pl.List(pl.Int64)).cast(pl.List(pl.String))
    target = pl.Series(targets, dtype=pl.Int64).cast(pl.String)
    rows = pl.DataFrame({"prefix": items.list.join(" "), "target": target})
    clicks = join_prefixes(path, rows.with_row_index("line", offset=1), "sample")
    sessions = clicks.group_by("session", maintain_order=True)
    return sessions.agg(pl.col("item").cast(pl.Int64))["item"].to_list()
