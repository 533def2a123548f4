"""kill -9 at the moments that matter, and several processes at once: nothing is lost, mixed or left
behind."""

import json
import signal
from pathlib import Path
from subprocess import PIPE

import pytest

from posrec.data.dataset import PreparedDataset
from tests.faults.forked import forked
from tests.helpers import (
    command,
    listed,
    slowly,
    small_shop,
    started,
    write_lines,
    write_log,
)

pytestmark = pytest.mark.process
SMALL = ("--set", "d=8", "--epochs", 2, "--device", "cpu", "--no-export")

# The command, killed after the given call of a function: module, name, which call.
KILLED = """
import os, signal, sys
from importlib import import_module
holder, name, call = sys.argv.pop(1).split(":")
module, _, kind = holder.partition("/")
owner = getattr(import_module(module), kind) if kind else import_module(module)
before, calls = getattr(owner, name), []
def then_die(*arguments, **options):
    result = before(*arguments, **options)
    calls.append(name)
    if len(calls) == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(owner, name, then_die)
from posrec.cli import main
main()
"""


NO_EXCHANGE = """
import posrec.io.folders
posrec.io.folders.exchange = lambda *_: False
"""


def killed(after: str, *arguments: object) -> None:
    done = forked(after, *arguments, code=KILLED)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "c.csv", small_shop())


@pytest.mark.parametrize(
    "file", [1, slowly(2), slowly(3)], ids=["first file", "second file", "third file"]
)
def test_a_run_killed_while_it_begins_can_be_resumed(
    small: PreparedDataset, tmp_path: Path, file: int
) -> None:
    line = ("train", small.path, "--out", tmp_path / "run", *SMALL)
    killed(f"posrec.io.files:give_name:{file}", *line)
    again = command(*line, "--resume")
    assert again.code == 0, again.err
    assert command("recommend", tmp_path / "run", "i3").code == 0


def test_a_run_killed_before_its_first_file_can_be_trained_again(
    small: PreparedDataset, tmp_path: Path
) -> None:
    line = ("train", small.path, "--out", tmp_path / "run", *SMALL)
    killed("posrec.io.unfinished:remove_leftovers:1", *line)
    assert command(*line).code == 0
    # As a process leaves it that is killed while it removes a run that has failed.
    failed = tmp_path / "failed"
    failed.mkdir()
    (failed / "vocabulary.json").write_text("{}")
    assert command("train", small.path, "--out", failed, *SMALL).code == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    refused = command("train", small.path, "--out", other, *SMALL)
    assert refused.code == 2
    assert "run folder" in refused.err
    assert listed(other) == ["letter.txt"]


WRITER = "posrec.data.prepare.writer"


@pytest.mark.parametrize(
    "after", [f"{WRITER}/ArrayFile:append:1", f"{WRITER}:write_json:1"]
)
def test_a_killed_prepare_leaves_no_dataset_and_the_next_one_cleans_up(
    log: Path, tmp_path: Path, after: str
) -> None:
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    killed(after, *line)
    (left,) = [name for name in listed(tmp_path) if name != "c.csv"]
    assert left.startswith(".out.unfinished-")
    assert command(*line).code == 0
    assert listed(tmp_path) == ["c.csv", "out"]
    assert command("stats", tmp_path / "out").code == 0


@pytest.mark.parametrize(
    "after",
    [
        f"{WRITER}:write_text:1",
        "posrec.io.folders:exchange:1",
        "pathlib/Path:rename:1",
        slowly("pathlib/Path:rename:2"),
    ],
)
def test_overwriting_a_dataset_never_loses_its_name(
    log: Path, tmp_path: Path, after: str
) -> None:
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "shop")
    assert command(*line).code == 0
    before = json.loads(command("stats", tmp_path / "shop", "--json").out)
    code = KILLED
    if "rename" in after:  # a file system that can't exchange names
        code = NO_EXCHANGE + code
    done = forked(after, *line, "--overwrite", code=code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if after == "pathlib/Path:rename:1":
        # Between the two renames: the next writer restores the name.
        assert not (tmp_path / "shop").exists()
        refused = command(*line)
        assert refused.code == 2
        assert "exists" in refused.err
    assert json.loads(command("stats", tmp_path / "shop", "--json").out) == before
    assert command(*line, "--overwrite").code == 0
    assert listed(tmp_path) == ["c.csv", "shop"]


def test_overwriting_through_a_link_keeps_the_link(log: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shop = tmp_path / "shop"
    assert command("prepare", log, "--format", "csv", "--out", first).code == 0
    shop.symlink_to(first)
    longer = write_log(tmp_path / "d.csv", small_shop(60))
    options = ("--format", "csv", "--out", shop, "--overwrite")
    done = command("prepare", longer, *options)
    assert done.code == 0, done.err
    assert shop.is_symlink()
    assert json.loads(command("stats", first, "--json").out)["clicks"] == 180
    assert listed(tmp_path) == ["c.csv", "d.csv", "first", "shop"]


# Two commands reach the end of their work together: both have looked whether the folder exists
# before either has it.
TOGETHER = """
import os, sys, time
from pathlib import Path
import posrec.io.folders as folders
flush, here = folders.flush, Path(sys.argv.pop(1))
def wait_for_the_other(path):
    flush(path)
    if path.is_dir() and path.name.startswith("."):
        (here / str(os.getpid())).touch()
        while len(list(here.iterdir())) < 2:
            time.sleep(0.01)
folders.flush = wait_for_the_other
from posrec.cli import main
main()
"""


def test_of_two_prepares_into_one_folder_one_succeeds(
    log: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "shop")
    both = [started(here, *line, code=TOGETHER, stderr=PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=240)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], errors
    assert any("exists" in error for error in errors)
    assert listed(tmp_path) == ["c.csv", "here", "shop"]


SLOW = """
import time
from posrec.training.loop import Training
def slowly(*arguments):
    print("training", flush=True)
    time.sleep(600)
Training.train_epoch = slowly
from posrec.cli import main
main()
"""


def test_a_run_is_trained_by_one_process_at_a_time(
    small: PreparedDataset, tmp_path: Path
) -> None:
    line = ("train", small.path, "--out", tmp_path / "run", *SMALL)
    first = started(*line, code=SLOW, stdout=PIPE, stderr=PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == "training\n"
    for _ in range(2):
        refused = command(*line, "--resume")
        assert refused.code == 2
        assert "another process" in refused.err
    first.kill()
    first.communicate()
    assert command(*line, "--resume").code == 0  # a killed process holds nothing
    assert ".lock" not in listed(tmp_path / "run")


@pytest.mark.parametrize("out", [slowly("a.jsonl"), "a.parquet"])
def test_a_killed_score_leaves_no_answers_and_the_next_one_cleans_up(
    trained: Path, tmp_path: Path, out: str
) -> None:
    sessions = write_lines(tmp_path / "in.jsonl", ['["i1", "i2"]'])
    line = ("score", trained, sessions, tmp_path / out)
    killed("posrec.recommend.files.score:answers_content:1", *line)
    for name in listed(tmp_path):
        assert name == "in.jsonl" or name.startswith(f".{out}.unfinished-")
    assert command(*line).code == 0
    assert listed(tmp_path) == sorted(["in.jsonl", out])


def test_what_a_killed_export_leaves_is_removed_by_the_next_one(
    trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    line = ("export", trained, "--index", tmp_path / "a.faiss")
    killed("posrec.recommend.rank.faiss_search:build:1", *line)
    (left,) = listed(tmp_path)
    assert left.startswith(".a.faiss.unfinished-")
    assert command("export", trained, "--index", tmp_path / "b.faiss").code == 0
    assert listed(tmp_path) == ["b.faiss"]


def test_a_killed_evaluation_leaves_a_run_that_can_be_used(
    small: PreparedDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert command("train", small.path, "--model", "pop", "--out", run).code == 0
    evaluate = ("evaluate", run, small.path)
    for call in range(1, 5):  # checksums, metrics, ranks, checksums
        killed(f"posrec.io.files:give_name:{call}", *evaluate)
        assert command("recommend", run, "i3").code == 0
    assert command(*evaluate).code == 0
    files = json.loads((run / "checksums.json").read_text())["files"]
    expected = {"metrics.json", "ranks.npy", "popularity.npy", "model.safetensors"}
    assert expected <= files.keys()
