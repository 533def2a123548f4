"""A full disk, or a limit on the size of files, leaves nothing half-written, and the error names
the file."""

from pathlib import Path

import pytest

from posrec.data.dataset import PreparedDataset
from tests.faults.forked import FILE_SIZE_LIMIT, forked
from tests.helpers import command, listed, slowly, small_shop, write_lines, write_log

pytestmark = pytest.mark.process
LIMITS = [500, slowly(4096)]  # bytes that a file may have, instead of a full disk


def fails(size: int, *arguments: object, file: Path | str = "") -> None:
    """The command ends with 1, and its last line names the file that became too large."""
    done = forked(*arguments, before=FILE_SIZE_LIMIT.format(size=size))
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"error: File too large: {file}")
    assert "half-written" in message
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", LIMITS)
@pytest.mark.parametrize("out", ["a.parquet", slowly("a.jsonl"), slowly("a.jsonl.gz")])
def test_a_full_disk_while_scoring(
    counted: Path, tmp_path: Path, out: str, size: int
) -> None:
    lines = [f'["i{n % 30}"]' for n in range(20_000)]
    sessions = write_lines(tmp_path / "in.jsonl", lines)
    line = ("score", counted, sessions, tmp_path / out)
    fails(size, *line, file=tmp_path / out)
    assert listed(tmp_path) == ["in.jsonl"]
    assert command(*line).code == 0
    assert listed(tmp_path) == sorted(["in.jsonl", out])


@pytest.mark.parametrize("size", LIMITS)
def test_a_full_disk_while_training(
    small: PreparedDataset, tmp_path: Path, size: int
) -> None:
    run = tmp_path / "run"
    fails(size, "train", small.path, "--out", run, "--device", "cpu", file=run)
    assert listed(tmp_path) == []


def test_a_full_disk_while_preparing(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(3000))
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    fails(4096, *line)
    assert listed(tmp_path) == ["c.csv"]
