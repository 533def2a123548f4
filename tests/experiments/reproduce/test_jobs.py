"""Jobs: run once, resumed, run again where data or defaults changed; failures are kept."""

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import RecordingProgress, listed, own_process

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunStopped
from posrec.evaluation.metrics import rank_metrics
from posrec.experiments.reproduce import jobs as module
from posrec.experiments.reproduce.jobs import WORST, Job, load_result, run_jobs
from posrec.io.unfinished import one_writer
from posrec.models.registry import MODELS

TINY = {"d": 8, "epochs": 1, "batch_size": 64}


def run(
    small: PreparedDataset,
    folder: Path,
    *jobs: Job,
    minutes: float | None = None,
    progress: Any = None,
):
    return run_jobs(jobs, {"shop": small}, folder, "cpu", minutes, progress)


def test_a_job_keeps_metrics_ranks_and_the_learned_encoding(
    small: PreparedDataset, tmp_path: Path
) -> None:
    job = Job("shop", "posrec", TINY)
    (result,) = run(small, tmp_path, job, Job("shop", "posrec", TINY)).values()
    ranks = torch.from_numpy(result.arrays()["ranks"]).long()
    assert len(ranks) == len(small.test)
    for name, value in rank_metrics(ranks).items():
        assert result.metrics[name] == pytest.approx(100 * float(value), abs=1e-3)
    assert result.arrays()["encoding"].shape == (20, 8)
    assert result.record["config"]["seed"] == 0
    assert result.record["config"]["d"] == 8
    assert len(result.record["losses"]) == 1
    assert load_result(job, tmp_path) == result
    (other,) = run(small, tmp_path, Job("shop", "posrec", TINY, seed=3)).values()
    assert "encoding" not in other.arrays()  # the report draws those of seed 0
    assert other.arrays()["ranks"].max() == WORST


def test_a_saved_job_is_not_run_again(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop = Job("shop", "pop")
    spop = Job("shop", "spop")
    before = run(small, tmp_path, pop)
    ran: list[str] = []
    real = module.run_job
    monkeypatch.setattr(
        module, "run_job", lambda *given: ran.append(given[-1].name) or real(*given)
    )
    after = run(small, tmp_path, pop, spop)
    assert ran == [spop.name]
    assert after[pop.name].record == before[pop.name].record
    assert set(run(small, tmp_path, spop)) == {
        spop.name
    }  # others in the folder are not this experiment's
    after[pop.name].path.with_suffix(".npz").unlink()
    assert load_result(pop, tmp_path) is None
    assert len(run(small, tmp_path, pop)[pop.name].arrays()["ranks"]) == len(small.test)
    assert ran == [spop.name, pop.name], "a job without its ranks is run again"


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
    assert result.record["config"] == asdict(
        MODELS["itemknn"].config()
    )  # no settings of a training: it only counts
    result.path.write_text(json.dumps(result.record | changes))
    recorded = RecordingProgress()
    assert (
        run(small, tmp_path, job, minutes=0, progress=recorded) == {}
    )  # not used for a report either
    assert reason in recorded.messages[0]
    (again,) = run(small, tmp_path, job).values()
    assert again.record["fingerprint"] == small.fingerprint
    assert again.record["config"] == result.record["config"]


def test_a_failure_is_kept_and_tried_again(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Job("shop", "posrec", {**TINY, "learning_rate": -1.0})
    fine = Job("shop", "pop")
    results = run(small, tmp_path, broken, fine)
    assert "learning_rate must be above 0, not -1.0" in (
        results[broken.name].error or ""
    )
    assert results[broken.name].metrics == {}
    assert results[fine.name].error is None

    def surprise(*_: Any, **__: Any) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(module, "train_and_score", surprise)
    recorded = RecordingProgress()
    results = run(small, tmp_path, broken, fine, progress=recorded)
    assert results[broken.name].error == "TypeError: a bug"
    assert "failed after" in recorded.messages[0]


def test_a_stop_is_passed_on_and_leaves_no_cell(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise RunStopped("stopped in epoch 1; go on with --resume")

    monkeypatch.setattr(module, "train_and_score", stopped)
    with pytest.raises(RunStopped, match="stopped in shop pop seed=0"):
        run(small, tmp_path, Job("shop", "pop"))
    assert load_result(Job("shop", "pop"), tmp_path) is None


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
    pop = Job("shop", "pop")
    posrec = Job("shop", "posrec", TINY)
    assert own_process(small.path, tmp_path, code=code).returncode == -signal.SIGKILL
    assert load_result(pop, tmp_path) is not None
    assert load_result(posrec, tmp_path) is None
    before = (tmp_path / "shop_pop_seed-0.json").read_text()
    results = run(small, tmp_path, pop, posrec)
    assert (tmp_path / "shop_pop_seed-0.json").read_text() == before
    assert len(results[posrec.name].arrays()["ranks"]) == len(small.test)
    assert [result.error for result in results.values()] == [None, None]


def test_no_job_is_started_after_the_time_is_up(
    small: PreparedDataset, tmp_path: Path
) -> None:
    recorded = RecordingProgress()
    assert (
        run(
            small,
            tmp_path,
            Job("shop", "pop"),
            Job("shop", "spop"),
            minutes=0,
            progress=recorded,
        )
        == {}
    )
    assert "2 of 2 jobs are left" in recorded.messages[0]


def test_damaged_files_are_named(small: PreparedDataset, tmp_path: Path) -> None:
    (result,) = run(small, tmp_path, Job("shop", "pop")).values()
    result.path.with_suffix(".npz").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(InputError, match=r"pop_seed-0\.npz can't be read"):
        result.arrays()["ranks"]
    result.path.write_text("[]")
    with pytest.raises(
        InputError, match=r"pop_seed-0\.json is not the result of a job"
    ):
        load_result(result.job, tmp_path)


def test_a_folder_of_jobs_has_one_writer(
    small: PreparedDataset, tmp_path: Path
) -> None:
    with one_writer(tmp_path), pytest.raises(InputError, match="another process"):
        run(small, tmp_path, Job("shop", "pop"))
    assert load_result(Job("shop", "pop"), tmp_path) is None
    run(small, tmp_path, Job("shop", "pop"))
    assert listed(tmp_path) == ["shop_pop_seed-0.json", "shop_pop_seed-0.npz"]
