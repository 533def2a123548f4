"""The arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from posrec.device import use_threads


def optional(help: str, **limits: Any) -> Any:
    return Option(None, help=help, **limits)


def switch(name: str, help: str) -> Any:
    return Option(False, name, help=help)


Dataset = Annotated[Path, Argument(help="A prepared dataset.")]
RunFolder = Annotated[Path, Argument(help="A run folder.")]
# Of commands whose work can be spread over many processes and machines by Ray.
LOCAL = "local"

Engine = Annotated[
    str,
    Option(
        help="local: in this process; ray: in the processes of a Ray cluster. "
        "Ray needs posrec[ray]."
    ),
]
Address = Annotated[
    str | None,
    Option(
        help="The Ray cluster: HOST:PORT, ray://HOST:PORT or auto; "
        "without it, one is started on this machine."
    ),
]
Workers = Annotated[
    int | None,
    Option(
        min=1, help="Ray tasks at a time on this machine; one per core if not given."
    ),
]

ItemsFile = Annotated[
    Path | None,
    Option(
        help="A file with a row per item: columns for filters, and items that the training did "
        "not see (for a run trained with attributes)."
    ),
]
CreatedColumn = Annotated[
    str | None,
    Option(help="--items: the column of when an item was created. [default: created]"),
]
ExpiresColumn = Annotated[
    str | None,
    Option(
        help="--items: the column of when an item expires, and is not recommended any more. "
        "[default: expires]"
    ),
]

Json = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
# A run of a model or with an encoding of the user's own is opened only with the code that these
# options name.
ModelOption = Annotated[
    str | None,
    Option("--model", help="my_model.py:MY_SPEC, for a run of a model of your own."),
]
EncodingOption = Annotated[
    str | None,
    Option(
        "--encoding",
        help="my_encoding.py:NAME, for a run with an encoding of your own.",
    ),
]
Overwrite = Annotated[
    bool, Option("--overwrite", help="Replace the output file if it exists.")
]
Device = Annotated[str, Option(help="auto, cpu or cuda")]
# The callback sets the number before the command loads torch; the command does not use the value.
Threads = Annotated[
    int | None,
    Option(
        help="Threads to compute with on a CPU; if not given, all usable cores, "
        "or one for a small training.",
        min=1,
        callback=use_threads,
    ),
]
