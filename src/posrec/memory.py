"""Work that does not fit in memory ends with a sentence that says what to lower."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from posrec.errors import InputError


@contextmanager
def told_what_to_lower(advice: str) -> Iterator[None]:
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
