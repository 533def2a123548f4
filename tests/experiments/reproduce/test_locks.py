"""Processes that run the same experiment into the same folder share its jobs."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import SOURCE, RecordingProgress, chain_shop, listed, own_process

from posrec.data.dataset import PreparedDataset
from posrec.experiments.reproduce import jobs
from posrec.experiments.reproduce.jobs import Job, JobResult, load_result, run_jobs
from posrec.io.unfinished import try_lock

TINY = {"d": 8, "epochs": 1, "batch_size": 64}
JOBS = [Job("shop", "posrec", TINY, seed) for seed in range(5)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return chain_shop(tmp_path_factory.mktemp("sharing"), seed=1)


def test_a_lock_is_held_once_and_its_file_is_removed(tmp_path: Path) -> None:
    a, b = tmp_path / "a.lock", tmp_path / "b.lock"
    with try_lock(a) as first, try_lock(a) as second, try_lock(b) as other:
        assert (first, second, other) == (True, False, True)
    assert listed(tmp_path) == []
    (tmp_path / "a.lock").touch()  # as a killed process leaves it
    with try_lock(tmp_path / "a.lock") as again:
        assert again
    with pytest.raises(ZeroDivisionError), try_lock(tmp_path / "a.lock"):
        raise ZeroDivisionError
    assert listed(tmp_path) == []


def test_a_lock_file_that_was_removed_before_it_was_locked_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removes the file between this process's opening and locking it; a third process makes it anew."""
    real = fcntl.flock

    def late(handle: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            (tmp_path / "a.lock").unlink()
            (tmp_path / "a.lock").touch()
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with try_lock(tmp_path / "a.lock") as is_ours:
        assert not is_ours
    assert listed(tmp_path) == ["a.lock"]  # the third process's stays


@pytest.mark.process
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from posrec.io.unfinished import try_lock
with try_lock(Path(sys.argv[1])) as is_ours:
    assert is_ours
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert own_process(tmp_path / "a.lock", code=code).returncode == -signal.SIGKILL
    assert listed(tmp_path) == ["a.lock"]
    with try_lock(tmp_path / "a.lock") as is_ours:
        assert is_ours


def test_a_job_that_another_process_runs_is_skipped_and_reported(shop: PreparedDataset, tmp_path: Path) -> None:
    pop, spop = Job("shop", "pop"), Job("shop", "spop")
    recorded = RecordingProgress()
    with try_lock(tmp_path / "shop_pop_seed-0.lock"):
        results = run_jobs([pop, spop], {"shop": shop}, tmp_path, "cpu", progress=recorded)
    assert set(results) == {spop.name}
    assert recorded.messages[-1] == "1 of 2 jobs were left to other processes"
    assert set(run_jobs([pop, spop], {"shop": shop}, tmp_path, "cpu")) == {pop.name, spop.name}


@pytest.mark.process
def test_every_job_is_run_once(shop: PreparedDataset, tmp_path: Path) -> None:
    code = f"""
import json, sys
from pathlib import Path
from posrec.data.dataset import load
from posrec.experiments.reproduce import jobs
data, folder = load(sys.argv[1]), Path(sys.argv[2])
real, ran = jobs.run_job, []
jobs.run_job = lambda job, *rest: ran.append(job.seed) or real(job, *rest)
print("ready", flush=True)
sys.stdin.readline()
todo = [jobs.Job("shop", "posrec", {TINY}, seed) for seed in range({len(JOBS)})]
jobs.run_jobs(todo, {{"shop": data}}, folder, "cpu")
print(json.dumps(ran))
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", code, str(shop.path), str(tmp_path / "jobs")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    both = [subprocess.Popen(line, env=environment, text=True, **pipes) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in both:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ran = [json.loads(process.communicate(timeout=240)[0]) for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert sorted(ran[0] + ran[1]) == [job.seed for job in JOBS]
    assert all(load_result(job, tmp_path / "jobs") for job in JOBS)
    assert not [name for name in listed(tmp_path / "jobs") if name.endswith(".lock")]


def test_a_job_that_another_process_finishes_while_results_are_read_is_not_run_again(
    shop: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop = Job("shop", "pop")
    read, run, ran = jobs.load_result, jobs.run_job, []

    def another_finishes_meanwhile(job: Job, folder: Path) -> JobResult | None:
        seen = read(job, folder)
        if seen is None:
            run(job, shop, folder, "cpu")
        return seen

    monkeypatch.setattr(jobs, "load_result", another_finishes_meanwhile)
    monkeypatch.setattr(jobs, "run_job", lambda job, *rest: ran.append(job) or run(job, *rest))
    assert set(run_jobs([pop], {"shop": shop}, tmp_path, "cpu")) == {pop.name}
    assert ran == []
