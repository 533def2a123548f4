"""The options of commands whose work can be spread over many processes and machines by Ray."""

from typing import Annotated

import typer

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
