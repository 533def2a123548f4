"""How commands print, and the options that several of them share."""

from typing import Annotated, Any

import typer

from posrec.device import use_threads
from posrec.progress import TerminalConsole, printable_json

# Of commands whose work can be spread over many processes and machines by Ray.
LOCAL = "local"

Engine = Annotated[
    str, typer.Option(help="local: in this process; ray: in the processes of a Ray cluster. Ray needs posrec[ray].")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster: HOST:PORT, ray://HOST:PORT or auto; without it, one is started on this machine.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Ray tasks at a time on this machine; one per core if not given.", show_default=False),
]

console, error_console = TerminalConsole(), TerminalConsole(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
# A run of a model or with an encoding of the user's own is opened only with the code that these options name.
ModelOption = Annotated[
    str | None, typer.Option("--model", help="my_model.py:MY_SPEC, for a run of a model of your own.")
]
EncodingOption = Annotated[
    str | None, typer.Option("--encoding", help="my_encoding.py:NAME, for a run with an encoding of your own.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
# The callback sets the number before the command loads torch; the command itself has no use for the value.
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads to compute with on a CPU; if not given, all usable cores, or one for a small training.",
        min=1,
        callback=use_threads,
        show_default=False,
    ),
]


def say(sentence: str) -> None:
    """Print a sentence; a terminal wraps lines itself."""
    console.print(sentence, highlight=False, soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a sentence to standard error, so that JSON on standard output stays JSON."""
    error_console.print(sentence, highlight=False, soft_wrap=True)


def show(figures: Any, table: Any, as_json: bool) -> None:
    """Print `figures` as JSON, or `table`, which shows the same to people."""
    if as_json:
        typer.echo(printable_json(figures, indent=2))
    else:
        console.print(table)
