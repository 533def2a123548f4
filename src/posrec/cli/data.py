"""The commands that make and describe a prepared dataset: prepare, stats."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from posrec.cli.printing import Json, Threads, console, show


def prepare(
    source: Annotated[list[str], typer.Argument(help="The click log: files or a quoted glob, plain, gzip or zstd.")],
    format: Annotated[
        str, typer.Option(help="yoochoose diginetica retailrocket otto recbole csv parquet sessions srgnn")
    ],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    test: Annotated[
        str | None, typer.Option(help="The test part of an existing split, which is kept as it is.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(help="A file with a row per item: id, title, category, any other column.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="clean (for your own log) or paper (the published preprocessing).")
    ] = None,
    session_column: Annotated[
        str | None,
        typer.Option(help="csv, parquet, recbole: the column of the session id. Guessed, and reported, if not given."),
    ] = None,
    item_column: Annotated[str | None, typer.Option(help="Likewise for the item id.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Likewise for the time.")] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(help="The unit of times that are numbers: s, ms, us or ns. Guessed, and reported, if not given."),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="The character between the fields of a csv file. [default: a comma]")
    ] = None,
    event_column: Annotated[str | None, typer.Option(help="The column of the event type.")] = None,
    events: Annotated[str | None, typer.Option(help="The event types to read, e.g. view,click.")] = None,
    gap: Annotated[
        str | None, typer.Option(help="Split a user's clicks into sessions after this much inactivity, e.g. 30m.")
    ] = None,
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
    drop_repeats: Annotated[
        bool, typer.Option("--drop-repeats", help="clean: drop a click on the item that was clicked just before.")
    ] = False,
    max_length: Annotated[int | None, typer.Option(help="clean: keep only the latest N clicks of a session.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the prepared dataset at --out.")] = False,
    threads: Threads = None,
) -> None:
    """Turn a click log into a prepared dataset.

    Example: posrec prepare clicks.csv --format csv --out shop
    """
    from posrec.cli.tables import account_table, counts_line
    from posrec.data.prepare import prepare
    from posrec.progress import TerminalProgress

    with TerminalProgress() as progress:
        data = prepare(
            source, format, out, test=test, items=items, recipe=recipe, overwrite=overwrite, progress=progress,
            session_column=session_column, item_column=item_column, time_column=time_column, time_unit=time_unit,
            delimiter="\t" if delimiter == "\\t" else delimiter, event_column=event_column, events=events or None,
            gap=gap, test_days=test_days, test_share=test_share, fraction=fraction, min_support=min_support,
            min_length=min_length, drop_repeats=drop_repeats, max_length=max_length,
        )  # fmt: skip
    console.print(account_table(data.manifest["steps"]), "", counts_line(data.manifest), sep="\n")
    done = f"Prepared in [bold]{escape(str(out))}[/]. Look at it with: posrec stats {escape(str(out))}"
    console.print(done, highlight=False, soft_wrap=True)


def stats(dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")], as_json: Json = False) -> None:
    """Describe a prepared dataset in numbers.

    Example: posrec stats shop
    """
    from posrec.cli.tables import stats_table
    from posrec.data.dataset import load
    from posrec.data.stats import stats

    figures = stats(load(dataset))
    show(figures, stats_table(figures), as_json)
