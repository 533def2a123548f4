"""Jobs: run once, resumed, run again where data or defaults changed; failures are kept."""

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunStopped
from posrec.evaluation.metrics import rank_metrics
from posrec.experiments.reproduce import jobs as module
from posrec.experiments.reproduce.jobs import (
    WORST,
    Job,
    JobResult,
    load_result,
    run_jobs,
)
from posrec.io.unfinished import one_writer
from posrec.models.registry import MODELS
from tests.helpers import RecordingProgress, listed, own_process

TINY = {"d": 8, "epochs": 1, "batch_size": 64}
POP = Job("shop", "pop")
SPOP = Job("shop", "spop")
POSREC = Job("shop", "posrec", TINY)


def run(
    small: PreparedDataset, folder: Path, *jobs: Job, **options: Any
) -> dict[str, JobResult]:
    return run_jobs(jobs, {"shop": small}, folder, "cpu", **options)


def test_a_job_keeps_metrics_ranks_and_the_learned_encoding(
    small: PreparedDataset, tmp_path: Path
) -> None:
    (result,) = run(small, tmp_path, POSREC, Job("shop", "posrec", TINY)).values()
    ranks = torch.from_numpy(result.arrays()["ranks"]).long()
    assert len(ranks) == len(small.test)
    for name, value in rank_metrics(ranks).items():
        assert result.metrics[name] == pytest.approx(100 * float(value), abs=1e-3)
    assert result.arrays()["encoding"].shape == (20, 8)
    assert result.record["config"]["seed"] == 0
    assert result.record["config"]["d"] == 8
    assert len(result.record["losses"]) == 1
    assert load_result(POSREC, tmp_path) == result
    (other,) = run(small, tmp_path, Job("shop", "posrec", TINY, seed=3)).values()
    assert "encoding" not in other.arrays()  # the report draws those of seed 0
    assert other.arrays()["ranks"].max() == WORST


def test_a_saved_job_is_not_run_again(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(small, tmp_path, POP)
    run_job = Mock(wraps=module.run_job)
    monkeypatch.setattr(module, "run_job", run_job)
    after = run(small, tmp_path, POP, SPOP)
    assert [call.args[-1] for call in run_job.call_args_list] == [SPOP]
    assert after[POP.name].record == before[POP.name].record
    # Other jobs in the folder are not this experiment's.
    assert set(run(small, tmp_path, SPOP)) == {SPOP.name}
    after[POP.name].path.with_suffix(".npz").unlink()
    assert load_result(POP, tmp_path) is None
    assert len(run(small, tmp_path, POP)[POP.name].arrays()["ranks"]) == len(small.test)
    # A job without its ranks is run again.
    assert [call.args[-1] for call in run_job.call_args_list] == [SPOP, POP]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": "0" * 32}, "other data (fingerprint 00000000"),
        ({"config": {"alpha": 9}}, "alpha=9, which is"),
    ],
)
def test_outdated_jobs_are_named_and_run_again(
    small: PreparedDataset, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    job = Job("shop", "itemknn")
    (result,) = run(small, tmp_path, job).values()
    # There are no settings of a training: it only counts.
    assert result.record["config"] == asdict(MODELS["itemknn"].config())
    result.path.write_text(json.dumps(result.record | changes))
    progress = RecordingProgress()
    # No job is started after the time is up, and a report does not use this one.
    assert run(small, tmp_path, job, minutes=0, progress=progress) == {}
    outdated, left = progress.messages
    assert reason in outdated
    assert "1 of 1 jobs are left" in left
    (again,) = run(small, tmp_path, job).values()
    assert again.record["fingerprint"] == small.fingerprint
    assert again.record["config"] == result.record["config"]


def test_a_failure_is_kept_and_tried_again(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Job("shop", "posrec", {**TINY, "learning_rate": -1.0})
    results = run(small, tmp_path, broken, POP)
    assert "learning_rate must be above 0" in str(results[broken.name].error)
    assert results[broken.name].metrics == {}
    assert results[POP.name].error is None
    bug = Mock(side_effect=TypeError("a bug"))
    monkeypatch.setattr(module, "train_and_score", bug)
    progress = RecordingProgress()
    results = run(small, tmp_path, broken, POP, progress=progress)
    assert results[broken.name].error == "TypeError: a bug"
    assert "failed after" in progress.messages[0]


def test_a_stop_is_passed_on_and_leaves_no_cell(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Mock(side_effect=RunStopped("stopped in epoch 1"))
    monkeypatch.setattr(module, "train_and_score", stopped)
    with pytest.raises(RunStopped, match="stopped in shop pop seed=0"):
        run(small, tmp_path, POP)
    assert load_result(POP, tmp_path) is None


@pytest.mark.process
def test_a_process_killed_in_the_middle_of_a_job_loses_that_job_alone(
    small: PreparedDataset, tmp_path: Path
) -> None:
    """Killed between the two files of a job; another process continues with what is there."""
    code = f"""
import os, signal, sys
from pathlib import Path
from posrec.data.dataset import load
from posrec.experiments.reproduce import jobs
data, folder = load(sys.argv[1]), Path(sys.argv[2])
jobs.run_jobs([jobs.Job("shop", "pop")], {{"shop": data}}, folder, "cpu")
jobs.write_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
jobs.run_jobs([jobs.Job("shop", "posrec", {TINY})], {{"shop": data}}, folder, "cpu")
"""
    assert own_process(small.path, tmp_path, code=code).returncode == -signal.SIGKILL
    assert load_result(POP, tmp_path) is not None
    assert load_result(POSREC, tmp_path) is None
    before = (tmp_path / "shop_pop_seed-0.json").read_text()
    results = run(small, tmp_path, POP, POSREC)
    assert (tmp_path / "shop_pop_seed-0.json").read_text() == before
    assert len(results[POSREC.name].arrays()["ranks"]) == len(small.test)
    assert [result.error for result in results.values()] == [None, None]


def test_damaged_files_are_named(small: PreparedDataset, tmp_path: Path) -> None:
    (result,) = run(small, tmp_path, POP).values()
    result.path.with_suffix(".npz").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(InputError, match=r"pop_seed-0\.npz can't be read"):
        result.arrays()
    result.path.write_text("[]")
    with pytest.raises(InputError, match=r"pop_seed-0\.json is not the result"):
        load_result(result.job, tmp_path)


def test_a_folder_of_jobs_has_one_writer(
    small: PreparedDataset, tmp_path: Path
) -> None:
    with one_writer(tmp_path), pytest.raises(InputError, match="another process"):
        run(small, tmp_path, POP)
    assert load_result(POP, tmp_path) is None
    run(small, tmp_path, POP)
    assert listed(tmp_path) == ["shop_pop_seed-0.json", "shop_pop_seed-0.npz"]
