"""What a user makes another may read as far as the umask allows, and a file that can't be read is
named as such."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from posrec.data.dataset import PreparedDataset
from tests.faults.forked import forked
from tests.helpers import slowly, small_shop, write_lines, write_log

SMALL = ("--set", "d=8", "--epochs", 1, "--device", "cpu")
NOBODY = 65534


@pytest.mark.process
@pytest.mark.parametrize("umask", [slowly(0o022), slowly(0o002), 0o077], ids=oct)
def test_every_file_has_the_mode_that_the_umask_leaves(
    tmp_path: Path, umask: int
) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    sessions = write_lines(tmp_path / "in.jsonl", ['["i1", "i2"]'])
    out = tmp_path / "out"
    for line in (
        ("prepare", log, "--format", "csv", "--out", out / "shop"),
        ("train", out / "shop", "--out", out / "run", "--no-export", *SMALL),
        ("train", out / "shop", "--model", "stamp", "--out", out / "exported", *SMALL),
        ("train", out / "shop", "--model", "pop", "--out", out / "pop"),
        ("score", out / "run", sessions, out / "a.jsonl"),
        ("score", out / "run", sessions, out / "a.parquet"),
    ):
        done = forked(*line, before=f"import os\nos.umask({umask})\n")
        assert done.returncode == 0, done.stderr
    paths = [out, *out.rglob("*")]
    assert len(paths) > 20
    for path in paths:
        allowed = 0o777 if path.is_dir() else 0o666
        assert oct(path.stat().st_mode & 0o777) == oct(allowed & ~umask), path


AS_NOBODY = f"""
import os, sys
import typer.rich_utils
from posrec.cli import explanations, main, tables
import posrec.data.prepare.pipeline, posrec.data.stats
import posrec.models.registry, posrec.recommend.export.opening
# Root may read everything, and another user perhaps not even Python, which is loaded by now.
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
main()
"""


def as_nobody(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked(*arguments, code=AS_NOBODY)


@pytest.fixture
def shared(trained: Path, small: PreparedDataset) -> Iterator[Path]:
    """A folder that everyone may enter, unlike pytest's, with a run and its dataset."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(trained, folder / "run")
        shutil.copytree(small.path, folder / "shop")
        yield folder


@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [
        "run/model.safetensors",
        slowly("run/config.json"),
        "shop/manifest.json",
        slowly("shop/train_items.npy"),
    ],
)
def test_a_file_that_may_not_be_read_is_named(shared: Path, name: str) -> None:
    (shared / name).chmod(0)
    line: tuple[object, ...] = ("stats", shared / "shop")
    if name.startswith("run"):
        line = ("recommend", shared / "run", "i3")
    refused(as_nobody(*line), f"{name} can't be read")


@pytest.mark.process
def test_a_run_of_another_user_is_read_unless_its_folder_is_closed(
    shared: Path,
) -> None:
    done = as_nobody("recommend", shared / "run", "i3", "-k", 2)
    assert done.returncode == 0, done.stderr
    (shared / "run").chmod(0o644)
    try:
        refused(as_nobody("recommend", shared / "run", "i3"), "folder")
    finally:
        (shared / "run").chmod(0o755)


@pytest.mark.process
def test_a_log_that_may_not_be_read_is_named(shared: Path) -> None:
    log = write_log(shared / "c.csv", small_shop())
    log.chmod(0)
    done = as_nobody("prepare", log, "--format", "csv", "--out", "/tmp/never-made")
    assert "Permission denied" in done.stderr
    assert str(log) in done.stderr
    assert "Traceback" not in done.stderr


def refused(done: subprocess.CompletedProcess[str], keyword: str) -> None:
    assert done.returncode == 2, done.stderr
    assert keyword in done.stderr
    assert "damaged" not in done.stderr
    assert "Traceback" not in done.stderr
