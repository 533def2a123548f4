"""The `posrec` command: parse, call, print. What a command does lives in the package; here are only its words.

Exit codes: 0 done, 1 failed, 2 bad input. Heavy modules are imported inside the commands that need them.
"""

import sys
from typing import Annotated

import typer
from rich.markup import escape

import posrec
from posrec.cli import data, experiments, runs
from posrec.cli import recommend as serving
from posrec.cli.printing import complaints
from posrec.errors import InputError, RunFailed, RunStopped

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From click log to next-item recommendations, with position as information.",
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"posrec {posrec.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options that stand before any command."""


# In the order of `posrec --help`: from the log to what is made of it.
for command in (
    experiments.demo,
    data.prepare,
    data.stats,
    experiments.encodings,
    runs.models,
    runs.train,
    runs.evaluate,
    experiments.compare,
    experiments.tune,
    experiments.reproduce,
    serving.recommend,
    serving.score,
    serving.export,
    serving.serve,
):
    app.command()(command)


def main() -> None:
    """Run a command; what the user did wrong is told in a line or two, never as a traceback."""
    try:
        app()
    except InputError as error:
        fail(str(error), code=2)
    except RunFailed as error:
        fail(str(error), code=1)
    except RunStopped as error:
        fail(str(error), code=130)
    except KeyboardInterrupt:
        fail("interrupted; nothing was left half-written", code=130)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        fail(f"{error.strerror or error}{where}; nothing was left half-written", code=1)


def fail(message: str, code: int) -> None:
    complaints.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)
