"""Memory that is freed in a block stays in the process, and is returned after it."""

import ctypes
import resource
from pathlib import Path

import pytest
import torch

from posrec.device import freed_memory_kept

LARGE = 5_000_000  # floats: 20 MB
pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone has these options")


def faults_of_allocating() -> int:
    """The pages that the system had to hand out for an array that was allocated and freed twice."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2):
        torch.ones(LARGE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def test_an_array_is_allocated_again_without_new_pages() -> None:
    pages = LARGE * 4 // resource.getpagesize()
    with freed_memory_kept():
        for _ in range(20):  # pieces that are left over at the edges of an array may separate the first ones
            torch.ones(LARGE)
        assert faults_of_allocating() < pages / 10
        with freed_memory_kept():
            pass
        assert faults_of_allocating() < pages / 10  # an inner block ends nothing


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process can't be read here")
def test_the_memory_is_returned_after_the_block() -> None:
    before = resident_mb()
    with freed_memory_kept():
        torch.ones(LARGE)
        assert resident_mb() > before + 10
    assert resident_mb() < before + 10
