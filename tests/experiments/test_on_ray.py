"""Experiments on a real Ray of two processes: the same results as here, continued by either engine."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.helpers import RecordingProgress, listed

from posrec.data.dataset import PreparedDataset
from posrec.experiments.reproduce import jobs
from posrec.experiments.reproduce.jobs import Job, run_jobs
from posrec.experiments.tune import tune
from posrec.io.executor import Cluster
from posrec.progress import SilentProgress

pytestmark = [pytest.mark.process, pytest.mark.slow]
TINY = {"d": 8, "epochs": 1, "batch_size": 64}
JOBS = [Job("shop", "pop"), *(Job("shop", "stamp", TINY, seed) for seed in range(3))]


def test_jobs_on_ray_are_those_of_this_process(
    small: PreparedDataset,
    tmp_path: Path,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some jobs here, the rest on Ray with a process killed; then there is nothing left for either."""
    here = run_jobs(JOBS, {"shop": small}, tmp_path / "here", "cpu")
    run_jobs(JOBS[:2], {"shop": small}, tmp_path / "both", "cpu")
    before = {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "both").iterdir()
    }
    marker = tmp_path / "killed"
    run_job = jobs.run_job

    def killed_once(
        datasets, folder, device, job
    ):  # the first process that comes to seed 1 is killed
        if job.seed == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return run_job(datasets, folder, device, job)

    monkeypatch.setattr(jobs, "run_job", killed_once)
    progress = RecordingProgress()
    both = run_jobs(
        JOBS,
        {"shop": small},
        tmp_path / "both",
        "cpu",
        progress=progress,
        executor=cluster,
    )
    assert marker.exists()
    assert [line.split(":")[0] for line in progress.messages] == ["1 of 2", "2 of 2"]
    assert both.keys() == here.keys() == {job.name for job in JOBS}
    for name, result in both.items():
        assert result.metrics == pytest.approx(here[name].metrics, rel=1e-3)
        assert np.mean(result.arrays()["ranks"] == here[name].arrays()["ranks"]) > 0.99
    after = {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "both").iterdir()
    }
    assert {name: after[name] for name in before} == before, (
        "finished jobs are not run again"
    )
    assert not [name for name in listed(tmp_path / "both") if name.endswith(".lock")]
    for engine in (None, cluster):
        progress = RecordingProgress()
        run_jobs(
            JOBS,
            {"shop": small},
            tmp_path / "both",
            "cpu",
            progress=progress,
            executor=engine,
        )
        assert progress.messages == []


FAST = {"d": 8, "batch_size": 64, "learning_rate": 0.02}


def test_a_search_is_continued_by_either_engine(
    small: PreparedDataset, tmp_path: Path, cluster: Cluster
) -> None:
    first = tune(
        small,
        "stamp",
        3,
        tmp_path,
        FAST,
        epochs=2,
        device="cpu",
        progress=SilentProgress(),
        executor=cluster,
    )
    assert (first.trials, first.failed) == (3, 0)
    assert first.default_value is not None, (
        "the first trial has the default settings, as in this process"
    )
    alone = tune(
        small, "stamp", 1, None, FAST, epochs=2, device="cpu", progress=SilentProgress()
    )
    assert first.default_value == pytest.approx(alone.default_value, rel=1e-3)
    progress = RecordingProgress()
    more = tune(
        small, "stamp", 4, tmp_path, FAST, epochs=2, device="cpu", progress=progress
    )
    assert (more.trials, more.history[:3]) == (4, first.history)
    assert (
        progress.messages[0] == f"continuing after 3 trials in {tmp_path / 'study.db'}"
    )
    last = tune(
        small,
        "stamp",
        5,
        tmp_path,
        FAST,
        epochs=2,
        device="cpu",
        progress=progress,
        executor=cluster,
    )
    assert (last.trials, last.history[:4]) == (5, more.history)
    assert progress.messages[-1].startswith("trial 5 of 5: ")
