"""The `posrec` command: parse, call, print. What a command does lives in the package; here are only its words.

Exit codes: 0 done, 1 failed, 2 bad input. Heavy modules are imported inside the commands that need them.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import posrec
from posrec.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From click log to next-item recommendations, with position as information.",
)
console = Console(emoji=False)
complaints = Console(stderr=True, emoji=False)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"posrec {posrec.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options that stand before any command."""


@app.command()
def demo(out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("posrec-demo")) -> None:
    """Show the main job on a small shop that comes with the package.

    Example: posrec demo
    """
    from posrec.data.demo import make_demo
    from posrec.data.stats import stats
    from posrec.terminal import account_table, ceiling_table, sessions_table, stats_table

    console.rule("[bold]A shop's click log", align="left")
    written = escape(str(out))
    console.print(
        f"An outdoor shop, simulated: 40,000 sessions over four weeks, in {written}/clicks.csv and items.csv.\n"
        "The first click sets an intention, later clicks drift, shoppers come back to what they saw.\n"
    )
    data = make_demo(out)
    console.rule("[bold]Prepared", align="left")
    console.print(account_table(data.manifest["steps"]), "", stats_table(stats(data)), "", sep="\n")
    console.rule("[bold]Two sessions to test on", align="left")
    console.print(sessions_table(data, (10, 12)), "")
    console.rule("[bold]How good can it get?", align="left")
    console.print("The shop's process is known, so the best any recommender can reach on the test part is computed:\n")
    console.print(ceiling_table(data.ceiling or {}), "")
    console.rule("[bold]Next", align="left")
    by_hand = f"posrec prepare {out}/clicks.csv --format csv --items {out}/items.csv --out shop"
    next_steps = f"The same by hand, and with your own log:\n  {by_hand}\n  posrec stats {data.path}"
    console.print(next_steps, highlight=False, markup=False, soft_wrap=True)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
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
) -> None:
    """Turn a click log into a prepared dataset.

    Example: posrec prepare clicks.csv --format csv --out shop
    """
    from posrec.data.prepare import prepare
    from posrec.data.stats import stats
    from posrec.listener import TerminalListener
    from posrec.terminal import account_table, stats_table

    with TerminalListener() as listener:
        data = prepare(
            source,
            format,
            out,
            test=test,
            items=items,
            recipe=recipe,
            overwrite=overwrite,
            listener=listener,
            session_column=session_column,
            item_column=item_column,
            time_column=time_column,
            time_unit=time_unit,
            delimiter="\t" if delimiter == "\\t" else delimiter,
            event_column=event_column,
            events=events or None,
            gap=gap,
            test_days=test_days,
            test_share=test_share,
            fraction=fraction,
            min_support=min_support,
            min_length=min_length,
            drop_repeats=drop_repeats,
            max_length=max_length,
        )
    console.print(account_table(data.manifest["steps"]), "", stats_table(stats(data)), "", sep="\n")
    where = escape(str(out))
    console.print(
        f"Prepared in [bold]{where}[/]. Look again with: posrec stats {where}", highlight=False, soft_wrap=True
    )


@app.command()
def stats(dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")], as_json: Json = False) -> None:
    """Say what a prepared dataset holds.

    Example: posrec stats shop
    """
    from posrec.data.sessions import load
    from posrec.data.stats import stats
    from posrec.terminal import stats_table

    figures = stats(load(dataset))
    show(figures, stats_table(figures), as_json)


def show(figures: Any, table: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False, indent=2))
    else:
        console.print(table)


def main() -> None:
    """Run a command; what the user did wrong is told in a line or two, never as a traceback."""
    try:
        app()
    except InputError as error:
        fail(str(error), code=2)
    except KeyboardInterrupt:
        fail("interrupted; nothing was left half-written", code=130)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        fail(f"{error.strerror or error}{where}; nothing was left half-written", code=1)


def fail(message: str, code: int) -> None:
    complaints.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)
