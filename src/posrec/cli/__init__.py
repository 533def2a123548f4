"""The `posrec` command: each module here parses options, calls the package and prints the result.

Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted. Heavy modules are imported inside
the commands that need them."""

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape
from rich.text import Text
from typer import Option
from typer.core import TyperCommand, TyperGroup

from posrec.cli import data, experiments, nightly, recommend, report, runs, serve
from posrec.cli.printing import error_console
from posrec.errors import DoesNotFit, InputError, RunFailed, RunStopped
from posrec.version import __version__


class FlagsWithoutType:
    """Typer 0.29 shows `--json <bool>`, as if a flag took a value; here without the type."""

    def get_params(self, *arguments: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(*arguments)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Commands(FlagsWithoutType, TyperGroup):
    def invoke(self, context: Any) -> Any:
        """Report Ctrl-C as RunStopped, because Typer would exit without a message."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            if context.invoked_subcommand == "serve":  # it has logged that it stopped
                raise typer.Exit(130) from None
            raise RunStopped("interrupted; nothing was left half-written") from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From click log to next-item recommendations, with position as information.",
    epilog="A first model of your own log: [bold]posrec prepare clicks.csv --out shop[/], "
    "[bold]posrec train shop --out runs/first[/], [bold]posrec serve runs/first[/]. "
    "Each command has examples: [bold]posrec train --help[/].",
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"posrec {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = Option(
        False,
        "--version",
        callback=show_version,
        is_eager=True,
        help="Print the version.",
    ),
) -> None:
    """Options that come before any command."""


class LiteralHelp(FlagsWithoutType, TyperCommand):
    """A command whose help is shown as it is written: a paragraph flows, examples have a line each,
    and rich does not take the brackets of `posrec[serve]` for markup."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        paragraphs, example, examples = (self.help or "").partition("Example:")
        flowing = re.sub(r"(?<!\n)\n(?!\n)", " ", paragraphs)
        self.help = escape(flowing + example + examples)
        for parameter in self.params:
            parameter.help = parameter.help and escape(parameter.help)  # type: ignore[attr-defined]


# In the order of `posrec --help`: from the click log to recommendations.
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "First": (experiments.demo, runs.doctor),
    "From a click log to a model": (
        data.prepare,
        data.stats,
        runs.train,
        runs.evaluate,
        runs.models,
        nightly.nightly,
    ),
    "From a model to recommendations": (
        recommend.recommend,
        recommend.score,
        serve.serve,
        serve.export,
        serve.forget,
        report.report,
    ),
    "Experiments": (
        experiments.compare,
        experiments.tune,
        experiments.encodings,
        experiments.positions,
        experiments.reproduce,
    ),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=LiteralHelp, rich_help_panel=panel)(command)


def main() -> None:
    """Errors that the user can fix are printed in a line or two, never as a traceback."""
    try:
        app()
    except InputError as error:
        fail(str(error), code=2, of_one_process=isinstance(error, DoesNotFit))
    except RunFailed as error:
        fail(str(error), code=1, of_one_process=True)
    except RunStopped as error:
        fail(str(error), code=130)
    except OSError as error:
        problem = error.strerror or str(error)
        if error.filename:
            problem += f": {error.filename}"
        fail(f"{problem}; nothing was left half-written", code=1, of_one_process=True)


def fail(message: str, code: int, of_one_process: bool = False) -> None:
    """Print an error and exit. All processes that torchrun starts find the same bad input, so only
    the first of each machine reports it, unless the error is `of_one_process`.
    """
    if of_one_process and "RANK" in os.environ:
        message = f"process {os.environ['RANK']}: {message}"
    if of_one_process or os.environ.get("LOCAL_RANK", "0") == "0":
        mark = Text("error:", "bold red")
        error_console.print(mark, message, highlight=False, soft_wrap=True)
    sys.exit(code)
