"""Experiments on a real Ray of two processes: the results of this process, continued by either."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posrec.data.dataset import PreparedDataset
from posrec.experiments.reproduce import jobs
from posrec.experiments.reproduce.jobs import Job, JobResult, run_jobs
from posrec.experiments.tune import tune
from posrec.io.executor import Cluster
from tests.helpers import RecordingProgress, listed

pytestmark = [pytest.mark.process, pytest.mark.slow]
TINY = {"d": 8, "epochs": 1, "batch_size": 64}
JOBS = [Job("shop", "pop"), *(Job("shop", "stamp", TINY, seed) for seed in range(3))]


def written_at(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_jobs_on_ray_are_those_of_this_process(
    small: PreparedDataset,
    tmp_path: Path,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some jobs here, the rest on Ray with a process killed; then nothing is left for either."""
    shop = {"shop": small}
    folder = tmp_path / "both"
    here = run_jobs(JOBS, shop, tmp_path / "here", "cpu")
    run_jobs(JOBS[:2], shop, folder, "cpu")
    before = written_at(folder)
    marker = tmp_path / "killed"
    run_job = jobs.run_job

    def killed_once(datasets: Any, folder: Path, device: str, job: Job) -> JobResult:
        """The first process that comes to seed 1 is killed."""
        if job.seed == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return run_job(datasets, folder, device, job)

    monkeypatch.setattr(jobs, "run_job", killed_once)
    progress = RecordingProgress()
    both = run_jobs(JOBS, shop, folder, "cpu", None, progress, cluster)
    assert marker.exists()
    assert [line.split(":")[0] for line in progress.messages] == ["1 of 2", "2 of 2"]
    assert both.keys() == here.keys() == {job.name for job in JOBS}
    for name, result in both.items():
        assert result.metrics == pytest.approx(here[name].metrics, rel=1e-3)
        assert np.mean(result.arrays()["ranks"] == here[name].arrays()["ranks"]) > 0.99
    assert before.items() <= written_at(folder).items(), "a finished job was run again"
    assert not [name for name in listed(folder) if name.endswith(".lock")]
    for engine in (None, cluster):
        progress = RecordingProgress()
        run_jobs(JOBS, shop, folder, "cpu", None, progress, engine)
        assert progress.messages == []


def test_a_search_is_continued_by_either_engine(
    small: PreparedDataset, tmp_path: Path, cluster: Cluster
) -> None:
    fixed = {"d": 8, "batch_size": 64, "learning_rate": 0.02}
    options: dict[str, Any] = {"fixed": fixed, "epochs": 2, "device": "cpu"}
    first = tune(small, "stamp", 3, tmp_path, **options, executor=cluster)
    assert (first.trials, first.failed) == (3, 0)
    # The first trial has the default settings, as in this process.
    alone = tune(small, "stamp", 1, **options)
    assert alone.default_value is not None
    assert first.default_value == pytest.approx(alone.default_value, rel=1e-3)
    more = tune(small, "stamp", 4, tmp_path, **options)
    assert (more.trials, more.history[:3]) == (4, first.history)
    last = tune(small, "stamp", 5, tmp_path, **options, executor=cluster)
    assert (last.trials, last.history[:4]) == (5, more.history)
