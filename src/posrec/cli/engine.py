"""The options of commands whose work can be spread over many processes and machines by Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from posrec.errors import InputError

if TYPE_CHECKING:
    from posrec.ray_cluster import Cluster

LOCAL, RAY = "local", "ray"
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


@contextmanager
def cluster_of(engine: str, address: str | None, workers: int | None) -> Iterator["Cluster | None"]:
    """The Ray cluster that the options ask for; None where the work is done in this process."""
    if engine not in (LOCAL, RAY):
        raise InputError(f"--engine {engine} is not known; choose {LOCAL} or {RAY}")
    if engine == LOCAL:
        for option, value in (("--address", address), ("--workers", workers)):
            if value is not None:
                raise InputError(f"{option} is for Ray; add --engine ray, or leave it out")
        yield None
        return
    from posrec.ray_cluster import ray_cluster

    with ray_cluster(address, workers) as cluster:
        yield cluster
