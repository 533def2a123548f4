"""Memory that is freed and allocated again at once, step after step: keep it in the process.

A training step on a CPU allocates and frees arrays of many megabytes: the scores of all items, the gradient of the
item table. By default glibc returns them to the system, which clears every page when it hands them out again.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# From glibc's malloc.h, with the defaults that are restored. The greatest threshold that glibc accepts is 32 MiB:
# larger arrays have mappings of their own, and are always returned. That bounds what is kept.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
DEFAULTS = {TRIM_THRESHOLD: 128 * 1024, MMAP_THRESHOLD: 128 * 1024}
KEPT_UP_TO = 32 * 1024 * 1024
KEEPING = {TRIM_THRESHOLD: 2**31 - 1, MMAP_THRESHOLD: KEPT_UP_TO}
open_blocks = 0  # training evaluates in between


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """In the block, freed memory stays in the process; afterwards it is returned. Without glibc nothing changes."""
    global open_blocks
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        yield
        return
    for option, value in KEEPING.items():
        library.mallopt(option, value)
    open_blocks += 1
    try:
        yield
    finally:
        open_blocks -= 1
        if not open_blocks:
            for option, value in DEFAULTS.items():
                library.mallopt(option, value)
            library.malloc_trim(0)
