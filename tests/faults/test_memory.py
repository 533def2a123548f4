"""A run that does not fit in memory says what to lower, under a limit in a separate process."""

from pathlib import Path

import pytest
import torch

from posrec.device import out_of_memory_hint
from posrec.errors import InputError
from tests.faults.forked import forked
from tests.helpers import chain_shop

LIMITED = """
import resource, sys
import torch
from posrec.cli import main
import posrec.fitting.fit, posrec.data.dataset, posrec.cli.tables

torch.set_num_threads(1)  # every further thread takes address space
torch.rand(200, 200) @ torch.rand(200, 200)  # as do the buffers of the first product
(kilobytes,) = (line.split()[1] for line in open("/proc/self/status") if "VmSize" in line)
resource.setrlimit(resource.RLIMIT_AS, (1024 * int(kilobytes) + 400 * 2**20, -1))
main()
"""


@pytest.mark.process
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="reads how much the process has from /proc",
)
@pytest.mark.parametrize(
    ("batch_size", "d"),
    [(100, 8000), (50_000, 512)],
    ids=["no room for the weights", "no room for a step"],
)
def test_too_large_a_run_says_what_to_lower(
    tmp_path: Path, batch_size: int, d: int
) -> None:
    data = chain_shop(tmp_path, seed=0, sessions=5000)
    words = ["--set", f"batch_size={batch_size}", "--set", f"d={d}", "--device", "cpu"]
    done = forked("train", data.path, "--out", tmp_path / "run", *words, code=LIMITED)
    assert done.returncode == 2, done.stderr
    assert f"batch_size (now {batch_size})" in done.stderr
    assert f"d (now {d})" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()  # so that the next try may use the name


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_errors_of_every_allocator_give_the_hint(error: Exception) -> None:
    with pytest.raises(InputError, match="lower it"), out_of_memory_hint("lower it"):
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory_hint("lower it"):
        torch.ones(2, 3) @ torch.ones(2, 3)
