"""The `posrec` command: parse, call, print. What a command does lives in the package; here are only its words.

Exit codes: 0 done, 1 failed, 2 bad input. Heavy modules are imported inside the commands that need them.
"""

import errno
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

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
console = Console()
complaints = Console(stderr=True)


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
def encodings(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with certificates and counterexamples.")] = False,
    theory: Annotated[bool, typer.Option("--theory", help="Work through the paper's statements instead.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's figures into this folder.")] = None,
    run: Annotated[list[Path] | None, typer.Option(help="A trained run; examine and draw its learned table.")] = None,
    max_length: Annotated[int, typer.Option(min=2, help="Examine sessions of up to this many clicks.")] = 70,
    dimensions: Annotated[int, typer.Option(min=2, help="The width d of the encodings.")] = 100,
) -> None:
    """Which positional encodings can tell where in a session a click is, by the definitions and by the paper.

    Example: posrec encodings --run runs/tonight --plot figures
    """
    from posrec.experiments import encoding_table
    from posrec.experiments.trained_encoding import load_trained_encoding

    trained = [load_trained_encoding(folder) for folder in run or []]
    if theory and trained:
        raise InputError("--theory examines the paper's own schemes; leave out --theory or --run")
    if theory:
        from posrec.encodings.theory import statements

        worked = statements(max_length, dimensions)
        print_result(as_json, [asdict(one) for one in worked], encoding_table.statements_table(worked))
    else:
        rows = encoding_table.examine(max_length, dimensions, trained)
        print_result(as_json, encoding_table.as_json(rows), encoding_table.as_table(rows))
    if plot is not None:
        from posrec.experiments.encoding_figures import draw, left_out

        for line in filter(None, [*(f"wrote {path}" for path in draw(plot, dimensions, trained)), left_out(trained)]):
            typer.echo(line, err=True)  # stdout is the table's or the JSON's


def print_result(as_json: bool, data: Any, for_people: RenderableType) -> None:
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        console.print(for_people)


def main() -> None:
    """Run a command; what the user did wrong is told in a line or two, never as a traceback."""
    try:
        app()
    except InputError as error:
        fail(str(error), code=2)
    except KeyboardInterrupt:
        fail("interrupted; nothing was left half-written", code=130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
            raise
        fail(f"{error.strerror}: {error.filename or 'while writing'}", code=1)


def fail(message: str, code: int) -> None:
    complaints.print(f"[bold red]error:[/] {message}", highlight=False, soft_wrap=True)
    sys.exit(code)
