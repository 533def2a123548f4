"""A dataset is never half-written: kill -9 while it is being written, and full disks."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.forked import FILE_SIZE_LIMIT, forked
from tests.helpers import command, listed, small_shop, write_log

KILLED = """
import os, signal, sys
import posrec.data.prepare.writer as writer
written, really = [], {place}
def then_die(owner, name):
    write = getattr(owner, name)
    def writing(*arguments):
        write(*arguments)
        written.append(name)
        if len(written) == really:
            os.kill(os.getpid(), signal.SIGKILL)
    return writing
for owner, name in ((writer.ArrayFile, "append"), (writer, "write_text"), (writer, "write_json")):
    setattr(owner, name, then_die(owner, name))
from posrec.cli import main
main()
"""


@pytest.mark.process
@pytest.mark.parametrize("place", [1, 8], ids=["first array", "manifest"])
def test_a_killed_process_leaves_no_dataset_and_the_next_one_cleans_up(tmp_path: Path, place: int) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    arguments = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    killed = forked(*arguments, code=KILLED.replace("{place}", str(place)))
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (left,) = [name for name in listed(tmp_path) if name != "c.csv"]
    assert left.startswith(".out.unfinished-")
    assert command(*arguments).code == 0
    assert listed(tmp_path) == ["c.csv", "out"]
    assert command("stats", tmp_path / "out").code == 0


@pytest.mark.process
def test_a_process_killed_while_overwriting_keeps_the_old_dataset(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    arguments = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    assert command(*arguments).code == 0
    before = command("stats", tmp_path / "out", "--json").out
    assert forked(*arguments, "--overwrite", code=KILLED.replace("{place}", "5")).returncode == -signal.SIGKILL
    assert command("stats", tmp_path / "out", "--json").out == before


@pytest.mark.process
def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(3000))
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    done = forked(*line, before=FILE_SIZE_LIMIT.format(size=4096))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: File too large: ")
    assert "nothing was left half-written" in done.stderr
    assert "Traceback" not in done.stderr
    assert listed(tmp_path) == ["c.csv"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, if one may be mounted here."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no tiny file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.process
def test_a_full_disk(tmp_path: Path, tiny_disk: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(6000))
    done = command("prepare", log, "--format", "csv", "--out", tiny_disk / "out")
    assert done.code == 1
    assert done.err.splitlines()[-1] == (
        f"error: No space left on device: {tiny_disk / 'out'}; nothing was left half-written"
    )
    assert listed(tiny_disk) == []


def test_a_folder_that_can_not_be_created(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    done = command("prepare", log, "--format", "csv", "--out", log / "below" / "a" / "file")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "can't be made" in done.err
    assert listed(tmp_path) == ["c.csv"]
