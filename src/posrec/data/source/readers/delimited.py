"""Formats of delimited text, a click in each line: yoochoose, diginetica, retailrocket, csv, tsv and recbole."""

from collections.abc import Sequence

import polars as pl

from posrec.data.prepare.steps import DAY
from posrec.data.source.readers.clicks import ClickCollector
from posrec.data.source.readers.columns import Columns, choose_columns, comma_separated, refuse_single_column
from posrec.data.source.readers.textlog import TextLayout, read_text
from posrec.data.source.remote import File
from posrec.errors import InputError


def read_yoochoose(files: Sequence[File], collector: ClickCollector) -> None:
    """`yoochoose-clicks.dat` of the RecSys Challenge 2015: session,timestamp,item,category; no header."""
    layout = TextLayout(",", names=("session", "timestamp", "item", "category"))
    read_text(files, layout, lambda path, names: Columns(("session",), "item", "timestamp"), collector)


def read_diginetica(files: Sequence[File], collector: ClickCollector) -> None:
    """`train-item-views.csv` of the CIKM Cup 2016.

    `timeframe` is the number of milliseconds since the session began, and `eventdate` is a day; the time of day is not
    recorded. As in the field's preprocessing, a session's day is that of its last-read click, whatever its `timeframe`.
    The session's latest click is placed at the end of that day and the others before it, so that `time` orders the
    clicks of a session by `timeframe` alone.
    """
    read_text(files, TextLayout(";"), diginetica_columns, collector)


def place_at_end_of_day(clicks: pl.DataFrame) -> pl.DataFrame:
    """`time`, a timeframe so far, becomes a moment of the session's `day`."""
    if "day" not in clicks.columns:  # there are no clicks
        return clicks
    end_of_day = pl.col("day").last().over("session") + DAY - 1
    until_latest = pl.col("time").max().over("session") - pl.col("time")
    return clicks.with_columns(time=end_of_day - until_latest).drop("day")


def diginetica_columns(path: File, names: list[str]) -> Columns:
    for session, item in (("sessionId", "itemId"), ("session_id", "item_id")):
        if {session, item, "timeframe", "eventdate"} <= set(names):
            return Columns((session,), item, "timeframe", date="eventdate")
    raise InputError(
        f"{path}, line 1: not a Diginetica header, which has sessionId;itemId;timeframe;eventdate "
        f"(or session_id;item_id;...) separated by semicolons; it has {comma_separated(names)}"
    )


def read_csv(files: Sequence[File], collector: ClickCollector) -> None:
    """Any delimited text with a header line; RetailRocket's `events.csv`, a log of visitors, is one."""
    read_delimited(files, TextLayout(collector.options.delimiter, quote='"'), collector)


def read_tsv(files: Sequence[File], collector: ClickCollector) -> None:
    """As csv, with a tab between the fields."""
    read_delimited(files, TextLayout("\t", quote='"'), collector)


def read_recbole(files: Sequence[File], collector: ClickCollector) -> None:
    """RecBole's atomic `.inter` files: separated by tabs, with a header of `name:type`."""
    read_delimited(files, TextLayout("\t", typed=True), collector)


def read_delimited(files: Sequence[File], layout: TextLayout, collector: ClickCollector) -> None:
    def columns_of(path: File, names: list[str]) -> Columns:
        if len(names) == 1:
            refuse_single_column(path, names[0], "\t" if layout.typed else None)
        columns = choose_columns(path, names, collector.options, collector.progress)
        collector.by_user |= columns.by_user
        return columns

    read_text(files, layout, columns_of, collector)
