"""How commands print, and the options that several of them share."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

console = Console(emoji=False)
error_console = Console(stderr=True, emoji=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]


def show(figures: Any, table: Any, as_json: bool) -> None:
    """Print `figures` as JSON, or `table`, which shows the same to people."""
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False, indent=2))
    else:
        console.print(table)
