"""One reader per log format. Each gives the click frame: `session, item, time`.

Ids are strings exactly as in the file (held as categories), time is int64 milliseconds, rows stand in file order.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path

import polars as pl

from posrec.data.columns import ChosenColumns, LogOptions, choose_columns, listed
from posrec.data.pickles import read_sequences
from posrec.data.sources import GZIP_MAGIC, ZSTD_MAGIC, Block, blocks, read_whole
from posrec.data.steps import DAY
from posrec.data.textlog import NEGATIVE, BadTimes, ClickCollector, Columns, TextLayout, decode, read_text
from posrec.errors import InputError
from posrec.progress import Progress

PARQUET_ROWS = 1_000_000


@dataclass(frozen=True)
class Reading:
    """What a reader gives. `of_users`: the ids are of people, whose clicks are still to be cut into sessions."""

    clicks: pl.DataFrame
    of_users: bool = False


def read_yoochoose(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """`yoochoose-clicks.dat` of the RecSys Challenge 2015: session,timestamp,item,category; no header."""
    layout = TextLayout(",", names=("session", "timestamp", "item", "category"))
    collector = ClickCollector(progress)
    read_text(files, layout, lambda path, names: Columns("session", "item", "timestamp"), collector, progress)
    return Reading(collector.clicks())


def read_diginetica(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """`train-item-views.csv` of the CIKM Cup 2016.

    `timeframe` is milliseconds since the session began, `eventdate` a day; the time of day is not told. A session's
    day is that of the click read last, as in the field's preprocessing, whatever its `timeframe`s say: the latest click
    is put at the end of that day and the others before it, so that time orders a session by `timeframe` alone.
    """
    layout = TextLayout(";")
    collector = ClickCollector(progress, time_unit="ms")
    read_text(files, layout, choose_diginetica, collector, progress)
    clicks = collector.clicks()
    if not len(clicks):
        return Reading(clicks)
    end_of_day = pl.col("day").last().over("session") + DAY - 1
    to_the_latest = pl.col("time").max().over("session") - pl.col("time")
    return Reading(clicks.select("session", "item", time=end_of_day - to_the_latest))


def choose_diginetica(path: Path, names: list[str]) -> Columns:
    for session, item in (("sessionId", "itemId"), ("session_id", "item_id")):
        if {session, item, "timeframe", "eventdate"} <= set(names):
            return Columns(session, item, "timeframe", date="eventdate")
    raise InputError(
        f"{path}, line 1: not a Diginetica header, which has sessionId;itemId;timeframe;eventdate "
        f"(or session_id;item_id;...) separated by semicolons; it has {listed(names)}"
    )


def read_retailrocket(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """RetailRocket's `events.csv`: a log of visitors. Views alone are read unless --events says otherwise."""
    options = replace(
        options,
        session_column="visitorid",
        item_column="itemid",
        time_column="timestamp",
        event_column="event",
        events=options.events or ("view",),
        time_unit="ms",
    )
    return replace(read_csv(files, options, progress), of_users=True)


def read_csv(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """Any delimited text with a header."""
    return read_delimited(files, TextLayout(options.delimiter, quote='"'), options, progress)


def read_recbole(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """RecBole's atomic `.inter` files: tabs, and a header of `name:type`."""
    return read_delimited(files, TextLayout("\t", typed=True), options, progress)


def read_delimited(files: Sequence[Path], layout: TextLayout, options: LogOptions, progress: Progress) -> Reading:
    collector = ClickCollector(progress, options.events, options.time_unit)
    of_users: list[bool] = []

    def choose(path: Path, names: list[str]) -> Columns:
        chosen = choose_columns(path, names, options, progress, "\t" if layout.typed else None)
        of_users.append(chosen.of_users)
        return chosen.columns

    read_text(files, layout, choose, collector, progress)
    return finish(collector, any(of_users), progress)


def finish(collector: ClickCollector, of_users: bool, progress: Progress) -> Reading:
    clicks = collector.clicks()
    if collector.events and collector.rows:
        if not len(clicks):
            raise InputError(
                f"none of {collector.rows:,} rows is of the events {', '.join(collector.events)}; "
                "name the kinds that the log has with --events"
            )
        progress.message(f"kept {len(clicks):,} of {collector.rows:,} rows: events {', '.join(collector.events)}")
    return Reading(clicks, of_users)


def read_parquet(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """Parquet with any column types; batch by batch."""
    collector = ClickCollector(progress, options.events, options.time_unit)
    of_users = False
    frames = [(path, scan_parquet(path)) for path in files]
    total = sum(frame.select(pl.len()).collect().item() for _, frame in frames)
    for path, frame in frames:
        chosen = choose_columns(path, frame.collect_schema().names(), options, progress)
        of_users |= chosen.of_users
        columns = {role: pl.col(name).alias(role) for role, name in chosen.columns.used().items()}
        # Tables that passed through pandas write missing numbers as NaN.
        schema = frame.select(columns.values()).collect_schema()
        rows = frame.select(column.fill_nan(None) if schema[role].is_float() else column
                            for role, column in columns.items())  # fmt: skip
        first = 0
        try:
            for batch in rows.collect_batches(chunk_size=PARQUET_ROWS, maintain_order=True):
                collector.add(batch, partial(blame_row, path, chosen, first, batch))
                first += len(batch)
                progress.update("Reading", collector.rows, total)
        except pl.exceptions.PolarsError as error:
            raise InputError(
                f"{path}, after row {first}: can't be read ({first_line(error)}); the file is damaged, or a column "
                "holds something that is no id, number or text"
            ) from None
    return finish(collector, of_users, progress)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def scan_parquet(path: Path) -> pl.LazyFrame:
    with path.open("rb") as file:
        packed = file.read(4).startswith((GZIP_MAGIC, ZSTD_MAGIC))
    try:
        frame = pl.scan_parquet(BytesIO(read_whole(path)) if packed else path, glob=False)
        frame.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} is no Parquet file, or is cut short ({first_line(error)})") from None
    return frame


def blame_row(path: Path, chosen: ChosenColumns, first: int, batch: pl.DataFrame, row: int | None, _: BadTimes) -> None:
    if row is None:
        return
    values = batch.row(row, named=True)
    where = f"{path}, row {first + row + 1}"
    for role in ("session", "item"):
        name, value = getattr(chosen.columns, role), values[role]
        if value is None or str(value) == "" or NEGATIVE.fullmatch(str(value)):
            fault = f"is {value}, and an id can't be negative" if value not in (None, "") else "is missing"
            raise InputError(f"{where}: the {role} (column {name!r}) {fault}; mend or remove the row")
    raise InputError(
        f"{where}: {values['time']!r} in column {chosen.columns.time!r} is no time; mend or remove the row"
    )


OTTO_EVENT = pl.Struct({"aid": pl.String, "ts": pl.Int64, "type": pl.String})
OTTO_SCHEMA = pl.Schema({"session": pl.String(), "events": pl.List(OTTO_EVENT)})


INEXACT_ID = re.compile(rb'"(?:aid|session)"\s*:\s*-?\d+[.eE]')  # would not come back as it stands in the file


def read_otto(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """OTTO's JSON lines: a session and its events. Clicks alone are read unless --events says otherwise."""
    collector = ClickCollector(progress, options.events or ("clicks",), "ms")
    for block in blocks(files, progress):
        complain = partial(blame_json, block)
        if INEXACT_ID.search(block.data):
            complain(0, {})
        try:
            sessions = pl.read_ndjson(BytesIO(block.data), schema=OTTO_SCHEMA)
        except pl.exceptions.PolarsError as error:
            complain(0, {})
            raise InputError(f"{block.path}, from line {block.first_line}: {first_line(error)}") from None
        events = sessions.explode("events").unnest("events")
        collector.add(events.rename({"aid": "item", "ts": "time", "type": "event"}), complain)
    return finish(collector, False, progress)


def blame_json(block: Block, row: int | None, _: BadTimes) -> None:
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
            form = '{"session": 1, "events": [{"aid": 2, "ts": 3, "type": "clicks"}]}'
            raise InputError(f"{where}: not a session as OTTO writes them, {form}") from None
        if any(isinstance(value, float) for value in ids):
            raise InputError(f"{where}: a session or aid is a number with a point or exponent; write it as text")
        if any(value is None or str(value) == "" or NEGATIVE.fullmatch(str(value)) for value in ids):
            raise InputError(f"{where}: a session or aid is missing or negative; mend or remove the line")
        if any(type(value) is not int for value in times):
            raise InputError(f"{where}: a ts is no whole number of milliseconds; mend or remove the line")
    if row is not None:
        raise InputError(f"{block.path}, from line {block.first_line}: a session or event is not as OTTO writes them")


def read_sessions(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """One session a line, item ids separated by spaces, oldest click first, sessions in order of time."""
    collector = ClickCollector(progress, time_unit="ms")
    before = 0
    for block in blocks(files, progress):
        lines = pl.Series("item", decode(block).split("\n"), dtype=pl.String).str.replace_all(r"[ \t\r]+", " ")
        lines = lines.str.strip_chars(" ")
        number = pl.int_range(before, before + len(lines), eager=True)
        clicks = pl.DataFrame({"session": number, "item": lines.str.split(" "), "time": number})
        clicks = clicks.filter(lines != "").explode("item")
        collector.add(clicks, partial(blame_word, block, clicks["session"] - before))
        before += len(lines)
    return Reading(collector.clicks())


def blame_word(block: Block, lines: pl.Series, row: int | None, _: BadTimes) -> None:
    assert row is not None, "a word is never blank"
    line = block.first_line + lines[row]
    raise InputError(f"{block.path}, line {line}: an item id is negative; mend or remove the line")


def read_srgnn(files: Sequence[Path], options: LogOptions, progress: Progress) -> Reading:
    """The pickles that SR-GNN's preprocessing writes and many repositories share."""
    sequences = [sequence for path in files for sequence in read_sequences(path)]
    frame = pl.DataFrame({"item": sequences}, schema={"item": pl.List(pl.Int64)}).with_row_index("session")
    clicks = frame.explode("item").select(
        pl.col("session", "item").cast(pl.String), pl.col("session").cast(pl.Int64).alias("time")
    )
    return Reading(clicks)


Reader = Callable[[Sequence[Path], LogOptions, Progress], Reading]

READERS: dict[str, Reader] = {
    "yoochoose": read_yoochoose,
    "diginetica": read_diginetica,
    "retailrocket": read_retailrocket,
    "otto": read_otto,
    "recbole": read_recbole,
    "csv": read_csv,
    "parquet": read_parquet,
    "sessions": read_sessions,
    "srgnn": read_srgnn,
}
