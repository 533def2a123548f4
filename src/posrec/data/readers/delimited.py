"""Formats of delimited text, a click in each line: yoochoose, diginetica, retailrocket, csv, tsv and recbole."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from posrec.data.readers.clicks import ClickCollector, ParsedLog
from posrec.data.readers.columns import Columns, choose_columns, comma_separated, refuse_single_column
from posrec.data.readers.options import LogOptions
from posrec.data.readers.store import ClickStore
from posrec.data.readers.textlog import TextLayout, read_text
from posrec.data.remote import File
from posrec.data.steps import DAY
from posrec.errors import InputError
from posrec.progress import Progress


def read_yoochoose(
    files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore | None = None
) -> ParsedLog:
    """`yoochoose-clicks.dat` of the RecSys Challenge 2015: session,timestamp,item,category; no header."""
    layout = TextLayout(",", names=("session", "timestamp", "item", "category"))
    collector = ClickCollector(progress, options, store=store)
    read_text(files, layout, lambda path, names: Columns(("session",), "item", "timestamp"), collector, progress)
    return collector.parsed_log()


def read_diginetica(
    files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore | None = None
) -> ParsedLog:
    """`train-item-views.csv` of the CIKM Cup 2016.

    `timeframe` is the number of milliseconds since the session began, and `eventdate` is a day; the time of day is not
    recorded. As in the field's preprocessing, a session's day is that of its last-read click, whatever its `timeframe`.
    The session's latest click is placed at the end of that day and the others before it, so that `time` orders the
    clicks of a session by `timeframe` alone.
    """
    layout = TextLayout(";")
    collector = ClickCollector(progress, options, time_unit="ms", store=store)
    read_text(files, layout, diginetica_columns, collector, progress)
    return collector.parsed_log(finish=place_at_end_of_day)


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


def read_retailrocket(
    files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore | None = None
) -> ParsedLog:
    """RetailRocket's `events.csv`, a log of visitors. Views alone are read unless --events asks for others."""
    options = replace(
        options,
        user_column="visitorid",
        item_column="itemid",
        time_column="timestamp",
        event_column="event",
        time_unit="ms",
    )
    return read_delimited(files, TextLayout(",", quote='"'), options, progress, store, default_events=("view",))


def read_csv(
    files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore | None = None
) -> ParsedLog:
    """Any delimited text with a header line."""
    return read_delimited(files, TextLayout(options.delimiter, quote='"'), options, progress, store)


def read_tsv(
    files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore | None = None
) -> ParsedLog:
    """As csv, with a tab between the fields."""
    return read_delimited(files, TextLayout("\t", quote='"'), options, progress, store)


def read_recbole(
    files: Sequence[File], options: LogOptions, progress: Progress, store: ClickStore | None = None
) -> ParsedLog:
    """RecBole's atomic `.inter` files: separated by tabs, with a header of `name:type`."""
    return read_delimited(files, TextLayout("\t", typed=True), options, progress, store)


def read_delimited(
    files: Sequence[File],
    layout: TextLayout,
    options: LogOptions,
    progress: Progress,
    store: ClickStore | None = None,
    default_events: tuple[str, ...] = (),
) -> ParsedLog:
    collector = ClickCollector(progress, options, default_events=default_events, store=store)
    by_user: list[bool] = []

    def columns_of(path: File, names: list[str]) -> Columns:
        if len(names) == 1:
            refuse_single_column(path, names[0], "\t" if layout.typed else None)
        columns = choose_columns(path, names, options, progress)
        by_user.append(columns.by_user)
        return columns

    read_text(files, layout, columns_of, collector, progress)
    return collector.parsed_log(any(by_user))
