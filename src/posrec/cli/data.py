"""From a log to a prepared dataset: prepare, stats."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from posrec.cli.printing import Json, Threads, console, show


def prepare(
    source: Annotated[list[str], typer.Argument(help="The log: a file, several, or a quoted glob; gzip and zstd too.")],
    format: Annotated[
        str, typer.Option(help="yoochoose diginetica retailrocket otto recbole csv parquet sessions srgnn")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    test: Annotated[str | None, typer.Option(help="The test part of a split made before, kept as it is.")] = None,
    items: Annotated[str | None, typer.Option(help="A file about items: id, title, category, anything else.")] = None,
    recipe: Annotated[str | None, typer.Option(help="paper (the field's) or clean (what an engineer wants).")] = None,
    session_column: Annotated[str | None, typer.Option(help="csv, parquet, recbole: else guessed, and said.")] = None,
    item_column: Annotated[str | None, typer.Option()] = None,
    time_column: Annotated[str | None, typer.Option()] = None,
    time_unit: Annotated[str | None, typer.Option(help="s, ms, us or ns, for times that are numbers.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between the fields of a csv file; a comma if not given.")
    ] = None,
    event_column: Annotated[str | None, typer.Option(help="Which column says what kind of event a row is.")] = None,
    events: Annotated[str | None, typer.Option(help="The kinds to read, e.g. view,click.")] = None,
    gap: Annotated[str | None, typer.Option(help="Cut users' clicks into sessions at this silence, e.g. 30m.")] = None,
    test_days: Annotated[float | None, typer.Option(help="Test on the last days of the log.")] = None,
    test_share: Annotated[float | None, typer.Option(help="clean: else on this share of sessions, 0.1.")] = None,
    fraction: Annotated[
        str | None, typer.Option(help="Train on the most recent part of the samples, e.g. 1/64.")
    ] = None,
    min_support: Annotated[int | None, typer.Option(help="Drop items with fewer clicks; 5.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Drop sessions with fewer clicks; 2.")] = None,
    drop_repeats: Annotated[bool, typer.Option("--drop-repeats", help="clean: drop immediate repeats.")] = False,
    max_length: Annotated[int | None, typer.Option(help="clean: keep a session's latest clicks only.")] = None,
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
    """Say what a prepared dataset holds.

    Example: posrec stats shop
    """
    from posrec.cli.tables import stats_table
    from posrec.data.dataset import load
    from posrec.data.stats import stats

    figures = stats(load(dataset))
    show(figures, stats_table(figures), as_json)
