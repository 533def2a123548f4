"""Where the work is done, and what to do when it does not fit in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from posrec.errors import InputError


def choose_device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {name!r} is not known; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


@contextmanager
def out_of_memory_hint(advice: str) -> Iterator[None]:
    """Turn running out of memory, on a GPU or a CPU, into an error that gives `advice`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_about_memory(error):
            raise
        where = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
        raise InputError(f"the run does not fit in {where}; {advice}") from None


# How torch says it on a CPU, where it is a RuntimeError like any other but for its words.
WORDS = ("DefaultCPUAllocator", "allocate memory", "bad_alloc")


def is_about_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in WORDS)
