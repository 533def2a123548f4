"""How commands print."""

from typing import Any

import typer
from rich.table import Column, Table

from posrec.progress import TerminalConsole, printable_json

console = TerminalConsole()
error_console = TerminalConsole(stderr=True)


def say(sentence: str) -> None:
    console.print(sentence, highlight=False, soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a sentence to standard error, so that JSON on standard output stays JSON."""
    error_console.print(sentence, highlight=False, soft_wrap=True)


def plain_table(*columns: str | Column, **options: Any) -> Table:
    """A table without lines."""
    return Table(*columns, box=None, pad_edge=False, **options)


def right(*names: str) -> list[Column]:
    """Columns of figures."""
    return [Column(name, justify="right", no_wrap=True) for name in names]


def show(figures: Any, table: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(printable_json(figures, indent=2))
    else:
        console.print(table)
