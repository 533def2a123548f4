"""How commands print, and the options that several of them share."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from posrec.device import use_threads

console = Console(emoji=False)
error_console = Console(stderr=True, emoji=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
# A run of a model or with an encoding of the user's own is opened only with the code that these options name.
ModelOption = Annotated[
    str | None, typer.Option("--model", help="my_model.py:MY_SPEC, for a run of a model of your own.")
]
EncodingOption = Annotated[
    str | None, typer.Option("--encoding", help="my_encoding.py:NAME, for a run with an encoding of your own.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
# The callback sets the number before the command loads torch; the command itself has no use for the value.
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads to compute with on a CPU; all usable cores if not given.", min=1, callback=use_threads,
        show_default=False,
    ),
]  # fmt: skip


def show(figures: Any, table: Any, as_json: bool) -> None:
    """Print `figures` as JSON, or `table`, which shows the same to people."""
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False, indent=2))
    else:
        console.print(table)
