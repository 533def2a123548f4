"""The commands that make and describe a prepared dataset: prepare, stats."""

from pathlib import Path
from typing import Annotated

import typer

from posrec.cli.printing import LOCAL, Address, Engine, Json, Threads, console, say, show, warn


def prepare(
    source: Annotated[
        list[str],
        typer.Argument(help="The click log: files or a quoted glob, plain, gzip or zstd; - is standard input."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="csv tsv jsonl parquet sessions yoochoose diginetica retailrocket otto recbole srgnn. Concluded from "
            "the file, and reported, if not given."
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="The test part of an existing split, which is kept as it is.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(help="A file with a row per item: id, title, category, any other column.")
    ] = None,
    all_items: Annotated[
        bool,
        typer.Option(
            "--all-items", help="Items of --items without enough clicks can be recommended too, by attributes."
        ),
    ] = False,
    recipe: Annotated[
        str | None, typer.Option(help="clean (for your own log) or paper (the published preprocessing).")
    ] = None,
    session_column: Annotated[
        list[str] | None,
        typer.Option(
            help="csv, tsv, jsonl, parquet, recbole: the column of the session id. Guessed, and reported, if not "
            "given. May be given again for a session that several columns identify."
        ),
    ] = None,
    user_column: Annotated[
        str | None,
        typer.Option(
            help="The column of the user id: clicks without a session's are split into sessions, see --gap. With "
            "--session-column too, clicks that have a session keep it."
        ),
    ] = None,
    item_column: Annotated[
        str | None, typer.Option(help="The column of the item id. Guessed, and reported, if not given.")
    ] = None,
    time_column: Annotated[
        str | None, typer.Option(help="The column of the time. Guessed, and reported, if not given.")
    ] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(help="The unit of times that are numbers: s, ms, us or ns. Guessed, and reported, if not given."),
    ] = None,
    time_format: Annotated[
        str | None, typer.Option(help="The layout of times that are neither numbers nor ISO: '%d.%m.%Y %H:%M:%S'.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="The character between the fields of a csv file. [default: a comma]")
    ] = None,
    event_column: Annotated[str | None, typer.Option(help="The column of the event type.")] = None,
    events: Annotated[
        str | None, typer.Option(help="The event types to read, e.g. view,click. All, and listed, if not given.")
    ] = None,
    event_weights: Annotated[
        str | None,
        typer.Option(help="How much a target of each type counts in training, e.g. view=1,cart=3,purchase=5."),
    ] = None,
    target_events: Annotated[
        str | None, typer.Option(help="Predict only clicks of these event types, e.g. purchase.")
    ] = None,
    bad_lines: Annotated[
        str | None,
        typer.Option(help="stop at broken lines, or skip them and write them to OUT.bad-lines.jsonl. [default: stop]"),
    ] = None,
    bad_lines_limit: Annotated[
        float | None, typer.Option(help="skip: stop if more than this share of the lines is broken. [default: 0.01]")
    ] = None,
    gap: Annotated[
        str | None,
        typer.Option(help="Split clicks into sessions after this much inactivity. [default: 30m for a log of users]"),
    ] = None,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Use every session for training; nothing can be evaluated.")
    ] = False,
    test_days: Annotated[float | None, typer.Option(help="Test on the sessions of the last N days of the log.")] = None,
    test_share: Annotated[
        float | None,
        typer.Option(
            help="clean: test on this share of the sessions, the latest, if --test-days is not given. [default: 0.1]"
        ),
    ] = None,
    fraction: Annotated[
        str | None, typer.Option(help="Train on the most recent part of the samples only, e.g. 1/64.")
    ] = None,
    min_support: Annotated[int | None, typer.Option(help="Drop items with fewer clicks. [default: 5]")] = None,
    min_length: Annotated[int | None, typer.Option(help="Drop sessions with fewer clicks. [default: 2]")] = None,
    drop_duplicates: Annotated[
        bool,
        typer.Option(
            "--drop-duplicates",
            help="clean: drop events that were sent twice: same visitor, item and event type within a second.",
        ),
    ] = False,
    max_session_clicks: Annotated[
        int | None, typer.Option(help="clean: drop sessions with more clicks, which are those of bots.")
    ] = None,
    drop_repeats: Annotated[
        bool,
        typer.Option(
            "--drop-repeats",
            help="clean: drop a click on the item that was clicked just before, also where a visitor came back to it.",
        ),
    ] = False,
    max_length: Annotated[int | None, typer.Option(help="clean: keep only the latest N clicks of a session.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the prepared dataset at --out.")] = False,
    engine: Engine = LOCAL,
    memory: Annotated[
        str | None,
        typer.Option(
            help="The memory to use, e.g. 4GB; a larger log is prepared in parts. With ray, of each task. "
            "[default: what is free]"
        ),
    ] = None,
    address: Address = None,
    threads: Threads = None,
) -> None:
    """Turn a click log into a prepared dataset.

    Example: posrec prepare clicks.csv --out shop
    """
    given = dict(locals())  # the options by their names, which are those of posrec.prepare too
    from posrec.cli.tables import account_table, counts_line
    from posrec.data.prepare.pipeline import prepare_folder
    from posrec.progress import TerminalProgress

    del given["threads"]
    given["delimiter"] = "\t" if delimiter == "\\t" else delimiter
    for name in ("session_column", "events", "event_weights", "target_events"):
        given[name] = given[name] or None
    with TerminalProgress() as progress:
        manifest = prepare_folder(**given, progress=progress)
    console.print(account_table(manifest["steps"]), "", counts_line(manifest), sep="\n")
    say(f"Prepared in {out}. Look at it with: posrec stats {out}")


def stats(dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")], as_json: Json = False) -> None:
    """Describe a prepared dataset in numbers.

    Example: posrec stats shop
    """
    from posrec.cli.tables import stats_table
    from posrec.data.dataset import load
    from posrec.data.stats import stats

    figures = stats(load(dataset))
    show(figures, stats_table(figures), as_json)
    for warning in figures["warnings"]:
        warn(warning)
