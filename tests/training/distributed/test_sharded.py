"""Training over two processes against training in one: its parts, whole runs, resuming, and a process that is lost."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.helpers import chain_shop, command, listed
from tests.training.distributed.pair import finish, outcomes, run_jobs, start
from tests.training.distributed.sharded_jobs import JOBS, TRAINED

from posrec.data.dataset import load
from posrec.errors import RunStopped
from posrec.fitting.fit import fit_run
from posrec.io import CONTINUATION, STATE, WEIGHTS, load_tensors
from posrec.progress import Progress, SilentProgress
from posrec.runs.run import load_run

pytestmark = pytest.mark.process
TWO = [name for name in JOBS if name not in ("srgnn", "bprmf")]  # which four processes train, in a slow test


class StopInSecondEpoch(SilentProgress):
    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        if work == "Epoch 2 of 2" and done == 3:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset, and what two processes make of the jobs."""
    path = tmp_path_factory.mktemp("two")
    begin(path, 2)
    run_jobs(2, path, *TWO)
    return path


def begin(folder: Path, processes: int) -> None:
    """Prepare the dataset, and the run that is resumed by so many processes."""
    chain_shop(folder, seed=0, items=45, sessions=150)
    with pytest.raises(RunStopped, match="epoch 2, step 3; continue with --resume"):
        train_alone(folder, "resumed", folder / f"resumed-{processes}", StopInSecondEpoch())


def train_alone(folder: Path, name: str, out: Path, progress: Progress) -> None:
    settings = {**TRAINED[name]}
    fit_run(load(folder / "data"), settings.pop("model", name), out, settings, "cpu", progress=progress, export=False)


@pytest.mark.parametrize("job", sorted(JOBS.keys() - TRAINED.keys()))
def test_two_processes_compute_what_one_does(folder: Path, job: str) -> None:
    assert outcomes(2, folder, job) == ["done", "done"]


@pytest.mark.parametrize("name", [name for name in TWO if name in TRAINED])
def test_two_processes_train_the_run_of_one(folder: Path, name: str) -> None:
    assert outcomes(2, folder, name) == ["done", "done"]
    check_same_run(folder, name, 2)


@pytest.mark.slow
def test_four_processes_compute_what_one_does(tmp_path: Path) -> None:
    begin(tmp_path, 4)
    run_jobs(4, tmp_path, *JOBS)
    for name in JOBS:
        assert outcomes(4, tmp_path, name) == ["done"] * 4
    for name in TRAINED:
        check_same_run(tmp_path, name, 4)


def check_same_run(folder: Path, name: str, processes: int) -> None:
    """Losses, weights, the checkpoint and metrics of a run against those of one process."""
    alone, together = folder / f"{name}-1", folder / f"{name}-{processes}"
    train_alone(folder, name, alone, SilentProgress())
    assert listed(alone) == listed(together)
    expected, found = (read_log(run) for run in (alone, together))
    assert [line.keys() for line in found] == [line.keys() for line in expected]
    for line, like in zip(found, expected, strict=True):
        if "loss" in like:
            assert line["loss"] == pytest.approx(like["loss"], rel=1e-5)
    for file in (WEIGHTS, STATE, CONTINUATION):
        (before, about), (after, same) = load_tensors(alone / file), load_tensors(together / file)
        others = {f"random.{rank}" for rank in range(1, processes)} if file == STATE else set()
        assert set(after) - set(before) == others
        assert about.keys() == same.keys()
        for tensor, weights in before.items():
            assert after[tensor].dtype == weights.dtype
            # A bias of the keys changes no attention: its gradient is rounding alone, which Adam scales up.
            if tensor != "random" and not tensor.endswith("queries_keys_values.bias"):
                rtol, atol = (0.02, 1e-10) if file == CONTINUATION else (1e-3, 1e-4)  # squares are far smaller
                assert torch.allclose(after[tensor], weights, rtol=rtol, atol=atol), tensor
    runs = load_run(alone), load_run(together)
    assert runs[0].metrics is not None
    assert runs[1].metrics == pytest.approx(runs[0].metrics, abs=0.01)


def read_log(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_is_resumed_by_one(tmp_path: Path) -> None:
    chain_shop(tmp_path, seed=0, items=45, sessions=150)
    run, line = tmp_path / "run", ["--model", "sasrec", "--device", "cpu", "--epochs", 40, "--set", "d=8"]
    processes = start(2, "-m", "posrec", "train", tmp_path / "data", "--out", run, *line)
    while not (run / STATE).exists() and processes[0].poll() is None:
        time.sleep(0.01)
    processes[1].kill()
    (code, out, err), _ = finish(processes)
    assert (code, out) == (1, "")
    assert "error: process 0: another process of the training has ended" in err.splitlines()[-1]
    assert "continue with the same command and --resume" in err
    assert "Traceback" not in err
    done = command("train", tmp_path / "data", "--out", run, *line, "--resume", "--no-export")
    assert done.code == 0, done.err
    assert "resuming after epoch" in done.err
    assert [entry["epoch"] for entry in read_log(run)] == list(range(1, 41))
    assert load_run(run).metrics is not None


HANGS = """
import sys, time
from datetime import timedelta
import torch
from posrec.cli import fail
from posrec.errors import RunFailed
from posrec.training.distributed import world as module

# Long enough for processes that start, or lose their processor, at different times.
module.TIMEOUT, module.REPORT_PERIOD = timedelta(seconds=30), timedelta(seconds=20)
try:
    with module.joined("cpu") as world:
        world.summed(torch.ones(1))
        if world.rank == 1:
            time.sleep(90)
            sys.exit(0)
        world.summed(torch.ones(1))
except RunFailed as error:
    fail(str(error), 1, of_one_process=True)
"""


@pytest.mark.slow
def test_a_process_that_hangs_is_named() -> None:
    (first, _, said), _, (third, _, also) = finish(start(3, "-c", HANGS))
    assert (first, third) == (1, 1)
    for text in (said, also):
        assert "process 1 of the training did not answer within 0:00:30; it hangs, or its machine does" in text
