"""Training over several processes that `torchrun` starts: joining them, and what the first process does for all.

`torchrun --nproc-per-node 2 -m posrec train shop --out runs/first` starts the same command twice. Each process reads
the dataset and holds a part of the item table (`nn/sharding.py`); the first one writes the run (docs/distributed.md).
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

from posrec.device import choose_device
from posrec.errors import InputError, RunFailed
from posrec.nn.collectives import LostRank, World

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets


def is_launched() -> bool:
    """Whether torchrun, or a launcher that sets the same environment variables, started this process."""
    return all(name in os.environ for name in LAUNCHED)


@contextmanager
def joined(device: str) -> Iterator[World | None]:
    """Join the other processes for the block; None if this process was started alone.

    Args:
        device: "cpu", "cuda" or "auto". On GPUs each process of a machine has its own.

    Raises:
        RunFailed: if the processes can't reach each other, or one of them was lost.
    """
    if not is_launched():
        yield None
        return
    rank, local_rank, size = (int(os.environ[name]) for name in LAUNCHED[:3])
    on_gpu = choose_device(device).type == "cuda"
    if on_gpu:
        if local_rank >= torch.cuda.device_count():
            raise InputError(
                f"torchrun started more processes than the {torch.cuda.device_count()} GPUs of this machine; lower "
                "--nproc-per-node, or use --device cpu"
            )
        torch.cuda.set_device(local_rank)
    options: dict[str, Any] = {"device_id": torch.device("cuda", local_rank)} if on_gpu else {}
    try:
        distributed.init_process_group("nccl" if on_gpu else "gloo", **options)
    except (RuntimeError, ValueError) as error:
        raise RunFailed(f"the processes of the training can't reach each other: {first_line(error)}") from None
    try:
        yield World(rank, size)
    except LostRank as error:
        raise RunFailed(
            f"another process of the training has ended ({first_line(error)}); its message, if it left one, says why. "
            "The last checkpoint is kept: continue with the same command and --resume"
        ) from None
    finally:
        gc.collect()  # NCCL waits for captured steps that use it
        distributed.destroy_process_group()


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


@contextmanager
def entered_by_first(world: World | None, device: torch.device) -> Iterator[None]:
    """In the block, the first process prepares what all need; at its end the others wait for it. If it fails, they
    raise an error too."""
    if world is None:
        yield
        return
    try:
        yield
    except BaseException:
        if world.is_first:
            world.number(0, device)
        raise
    if not world.number(1, device):
        raise InputError("the first process could not begin the run; its message says why")


def is_first(world: World | None) -> bool:
    """Whether this process writes the run."""
    return world is None or world.is_first
