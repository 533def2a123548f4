"""Training by two processes against training by one, and what ends it: a lost process, a signal,
different options."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.io import STATE
from posrec.runs.run import load_run
from tests.helpers import SOURCE, chain_shop, command, fitted, listed
from tests.training.runs import log_of

pytestmark = pytest.mark.process
ON_CPU = ("--device", "cpu", "--no-export")
QUICK = {"d": 16, "learning_rate": 0.01}
EXACT = {"batch_size": 36, "d": 8, "epochs": 2, "learning_rate": 0.01, "max_length": 6}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("shop")
    return chain_shop(folder, seed=1, items=45, sessions=150)  # 540 samples


def words(shop: PreparedDataset, out: Path, model: str, epochs: int) -> list[object]:
    """The arguments of `posrec train`, with settings that are quick."""
    settings = [f"--set={name}={value}" for name, value in QUICK.items()]
    line = [shop.path, "--out", out, "--model", model, "--epochs", epochs]
    return [*line, *ON_CPU, *settings]


def start(
    *arguments: object, of_second: tuple[object, ...] = ()
) -> list["subprocess.Popen[str]"]:
    """`posrec train ARGUMENTS` in two processes, as torchrun starts them, without the seconds that
    it takes itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "300",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = []
    for rank, more in (("0", ()), ("1", of_second)):
        line = [sys.executable, "-m", "posrec", "train", *map(str, (*arguments, *more))]
        environment |= {"RANK": rank, "LOCAL_RANK": rank}
        process = subprocess.Popen(line, env=environment, text=True, **pipes)
        processes.append(process)
    return processes


def finish(processes: list["subprocess.Popen[str]"]) -> list[tuple[int, str]]:
    """The exit code and standard error of each."""
    outcomes = []
    for process in processes:
        try:
            _, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
        outcomes.append((process.returncode, errors))
    return outcomes


def wait_for_a_checkpoint(run: Path, processes: list["subprocess.Popen[str]"]) -> None:
    while not (run / STATE).exists() and processes[0].poll() is None:
        time.sleep(0.01)


@pytest.mark.slow
def test_two_processes_reach_the_accuracy_of_one(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    """The default model and protocol, which also ranks validation sessions and trains twice."""
    run = tmp_path / "together"
    done = finish(start(*words(shop, run, "posrec-plus", 6)))
    assert [code for code, _ in done] == [0, 0], done
    together = load_run(run).metrics
    assert together is not None
    alone = []
    for seed in range(3):
        settings = {**QUICK, "epochs": 6, "seed": seed}
        alone.append(fitted(shop, None, tmp_path / str(seed), settings)[1].metrics)
    for name in ("recall@20", "mrr@20"):
        values = [metrics[name] for metrics in alone]
        margin = max(values) - min(values) + 0.02
        assert min(values) - margin < together[name] < max(values) + margin
    assert listed(run) == listed(tmp_path / "0")
    assert command("evaluate", run, shop.path).code == 0


def test_two_processes_take_the_steps_of_one(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    """Two halves of a batch have the gradient of the whole; nothing is random but the order, which
    they share."""
    assert len(shop.train) % EXACT["batch_size"] == 0
    settings = [f"--set={name}={value}" for name, value in EXACT.items()]
    line = (shop.path, "--model", "posrec", "--out", tmp_path / "together", *ON_CPU)
    done = finish(start(*line, *settings))
    assert [code for code, _ in done] == [0, 0], done
    alone, _ = fitted(shop, "posrec", tmp_path / "alone", EXACT)
    expected = log_of(alone.path)
    log = log_of(tmp_path / "together")
    assert [epoch["steps"] for epoch in log] == [epoch["steps"] for epoch in expected]
    losses = [epoch["loss"] for epoch in expected]
    assert [epoch["loss"] for epoch in log] == pytest.approx(losses, rel=1e-4)


def test_a_killed_process_ends_the_other_and_the_run_is_resumed_by_one(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    line = words(shop, run, "sasrec", 40)
    processes = start(*line)
    wait_for_a_checkpoint(run, processes)
    processes[1].kill()
    (code, errors), _ = finish(processes)
    assert code == 1, errors
    assert "process 0: another process of the training" in errors.splitlines()[-1]
    assert "--resume" in errors
    assert "Traceback" not in errors
    done = command("train", *line, "--resume")
    assert done.code == 0, done.err
    assert "resuming after epoch" in done.err
    assert [epoch["epoch"] for epoch in log_of(run)] == list(range(1, 41))


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    line = words(shop, run, "sasrec", 400)
    processes = start(*line)
    wait_for_a_checkpoint(run, processes)
    processes[1].send_signal(signal.SIGTERM)
    (first, errors), (second, _) = finish(processes)
    assert (first, second) == (130, 130), errors
    assert "stopped in epoch" in errors
    again = start(*line, "--resume")
    assert again[0].stderr is not None
    while not again[0].stderr.readline().startswith("epoch"):
        assert again[0].poll() is None
    again[0].send_signal(signal.SIGTERM)
    assert [code for code, _ in finish(again)] == [130, 130]


def test_different_data_or_options_are_refused_and_nothing_is_written(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    line = words(shop, tmp_path / "run", "sasrec", 4)
    (code, errors), (other, _) = finish(start(*line, of_second=("--seed", 3)))
    assert (code, other) == (2, 2), errors
    assert "different data or options: seed is 0, and 3;" in errors
    assert "Traceback" not in errors
    assert listed(tmp_path) == []


@pytest.mark.slow
def test_a_model_that_counts_is_counted_by_the_first_process(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    line = (shop.path, "--model", "pop", "--out", tmp_path / "run", "--device", "cpu")
    done = finish(start(*line))
    assert [code for code, _ in done] == [0, 0], done
    assert load_run(tmp_path / "run").metrics is not None
