"""RecBole's prepared sessions: a prefix of a session and its target in each row, joined into sessions again."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import polars as pl

from posrec.data.source.blocks import Block, blocks
from posrec.data.source.files import File
from posrec.data.source.readers.clicks import ClickCollector, find_broken_text
from posrec.data.source.readers.columns import NEGATIVE, comma_separated
from posrec.data.source.readers.delimited import RECBOLE, split_header
from posrec.errors import InputError

PREFIX, TARGET = "item_id_list", "item_id"


def read_prefixes(files: Sequence[File], collector: ClickCollector) -> None:
    """The files that RecBole reads by `benchmark_filename`, e.g. NAME.train.inter.

    In files of RecBole's authors `session_id` numbers rows, not sessions, so a session is found by its rows: every
    prefix of it, one below the other, the longest or the shortest first. A session's time is its place in the log.
    """
    before = 0
    for path, parts in groupby(blocks(files, collector.progress), attrgetter("path")):
        clicks = join_prefixes(path, read_rows(path, parts)).with_columns(pl.col("session") + before)
        collector.keep(collector.check(clicks.with_columns(time=pl.col("session"))))
        before += clicks["session"].n_unique()


def read_rows(path: File, parts: Iterable[Block]) -> pl.DataFrame:
    """The prefix, the target and the line of every row of a file."""
    names: list[str] = []
    rows = []
    for part in parts:
        block = part
        if part.first_line == 1:
            names, block = split_header(part, RECBOLE)
            if PREFIX not in names or TARGET not in names:
                raise InputError(
                    f"{path}, line 1: prefixes of sessions need the columns {PREFIX} and {TARGET}; it has "
                    f"{comma_separated(names)}"
                )
        for bad in find_broken_text(block):
            raise InputError(f"{bad}; {bad.advice}")
        lines = pl.Series("line", block.data.decode("utf-8").split("\n")).str.strip_chars("\r")
        fields = lines.str.split("\t")
        columns = {"prefix": names.index(PREFIX), "target": names.index(TARGET)}
        table = pl.DataFrame(
            {
                "line": pl.int_range(block.first_line, block.first_line + len(lines), eager=True),
                "fields": fields.list.len(),
                **{name: fields.list.get(column, null_on_oob=True) for name, column in columns.items()},
            }
        ).with_columns(pl.col("prefix", "target").str.replace_all(" +", " ").str.strip_chars(" "))
        rows.append(table.filter(lines.str.strip_chars() != ""))
    table = pl.concat(rows)
    is_item = pl.col("target").str.contains(r"^\S+$") & (pl.col("prefix") != "")
    negative = pl.concat_str("prefix", "target", separator=" ").str.contains(rf"(^| ){NEGATIVE.pattern}( |$)")
    for wrong, reason in (
        (pl.col("fields") != len(names), f"there must be {len(names)} fields, a tab between them"),
        (~is_item, f"{PREFIX} must hold item ids, separated by spaces, and {TARGET} one item id"),
        (negative, "an item id is negative"),
    ):
        if len(bad_rows := table.filter(wrong)):
            raise InputError(f"{path}, line {bad_rows['line'][0]}: {reason}; fix the line")
    return table


def join_prefixes(path: File, rows: pl.DataFrame, unit: str = "line") -> pl.DataFrame:
    """The clicks of the sessions that rows of prefixes come from, with the session's place in the file.

    A row is a prefix, ids separated by spaces, a target, and the number of its line, or of what `unit` says.

    Prefixes may be cut to their latest clicks, to 50 in the files of RecBole's authors: a prefix is then the row before
    it without its first click. A session is its first click and the targets of its rows, so nothing is lost.
    """
    before = pl.concat_str("prefix", "target", separator=" ").shift()
    continues = (pl.col("prefix") == before) | (pl.col("prefix") == before.str.replace(r"^\S+ ", ""))
    failures = []
    for longest_first in (True, False):
        ordered = rows.reverse() if longest_first else rows
        first = ~ordered["prefix"].str.contains(" ")
        broken = ordered.filter(~(first | ordered.select(continues.fill_null(False)).to_series()))
        if len(broken):
            failures.append((len(broken), int(broken["line"].to_numpy().min()), "below" if longest_first else "above"))
            continue
        number = first.cum_sum().cast(pl.Int64) - 1
        clicks = ordered.select(
            session=first.sum() - 1 - number if longest_first else number,
            item=pl.when(first).then(pl.concat_list("prefix", "target")).otherwise(pl.concat_list("target")),
        )
        return clicks.explode("item").sort("session", maintain_order=True)
    _, line, place = min(failures)
    raise InputError(
        f"{path}, {unit} {line}: the row {place} it is not the next shorter prefix of the same session; only files "
        "that hold every prefix of each session, one below the other, can be read"
    )
