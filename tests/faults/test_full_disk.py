"""A full disk, or a limit on the size of files, leaves nothing half-written, and the error names
the file."""

from pathlib import Path

import pytest

from posrec.data.dataset import PreparedDataset
from tests.faults.forked import FILE_SIZE_LIMIT, forked
from tests.helpers import command, listed, slowly, small_shop, write_lines, write_log

pytestmark = pytest.mark.process
LIMITS = [
    500,
    slowly(4096),
]  # bytes that a file may have: a limit stands for a full disk


@pytest.mark.parametrize("size", LIMITS)
@pytest.mark.parametrize("out", ["a.parquet", slowly("a.jsonl"), slowly("a.jsonl.gz")])
def test_a_full_disk_while_scoring(
    counted: Path, tmp_path: Path, out: str, size: int
) -> None:
    sessions = write_lines(
        tmp_path / "in.jsonl", [f'["i{n % 30}"]' for n in range(20_000)]
    )
    done = forked(
        "score",
        counted,
        sessions,
        tmp_path / out,
        before=FILE_SIZE_LIMIT.format(size=size),
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: File too large: {tmp_path / out}"), (
        done.stderr
    )
    assert done.stderr.endswith("; nothing was left half-written\n")
    assert listed(tmp_path) == ["in.jsonl"]
    assert command("score", counted, sessions, tmp_path / out).code == 0
    assert listed(tmp_path) == sorted(["in.jsonl", out])


@pytest.mark.parametrize("size", LIMITS)
def test_a_full_disk_while_training(
    small: PreparedDataset, tmp_path: Path, size: int
) -> None:
    done = forked(
        "train",
        small.path,
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
        before=FILE_SIZE_LIMIT.format(size=size),
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"error: File too large: {tmp_path / 'run'}/"
    )
    assert "Traceback" not in done.stderr
    assert listed(tmp_path) == []


def test_a_full_disk_while_preparing(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(3000))
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    done = forked(*line, before=FILE_SIZE_LIMIT.format(size=4096))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: File too large: ")
    assert "nothing was left half-written" in done.stderr
    assert "Traceback" not in done.stderr
    assert listed(tmp_path) == ["c.csv"]
