"""Training by two processes against training by one, and what ends it: a lost process, a signal,
different options."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import SOURCE, chain_shop, command, listed

from posrec.data.dataset import PreparedDataset
from posrec.fitting.fit import fit_run
from posrec.io import STATE
from posrec.progress import SilentProgress
from posrec.runs.run import load_run

pytestmark = pytest.mark.process
LINE = (
    "--device",
    "cpu",
    "--no-export",
    "--set",
    "d=16",
    "--set",
    "learning_rate=0.01",
)
EXACT = {"batch_size": 36, "d": 8, "epochs": 2, "learning_rate": 0.01, "max_length": 6}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return chain_shop(
        tmp_path_factory.mktemp("shop"), seed=1, items=45, sessions=150
    )  # 540 samples


def start(
    *arguments: object, of_second: tuple[object, ...] = ()
) -> list["subprocess.Popen[str]"]:
    """`posrec train ARGUMENTS` in two processes, as torchrun starts them, without the seconds that
    it takes itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "300",
        "WORLD_SIZE": "2",
    }
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank, more in (("0", ()), ("1", of_second)):
        line = [sys.executable, "-m", "posrec", "train", *map(str, (*arguments, *more))]
        environment = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
        options: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        processes.append(subprocess.Popen(line, env=environment, **options))
    return processes


def finish(processes: list["subprocess.Popen[str]"]) -> list[tuple[int, str]]:
    """The exit code and standard error of each."""
    found = []
    for process in processes:
        try:
            _, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
        found.append((process.returncode, errors))
    return found


def alone(
    shop: PreparedDataset, model: str | None, out: Path, **settings: Any
) -> dict[str, float]:
    _, evaluation = fit_run(
        shop, model, out, settings, "cpu", progress=SilentProgress(), export=False
    )
    return evaluation.metrics


def epochs_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_two_processes_reach_the_accuracy_of_one(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    """The default model and protocol, which also ranks validation sessions and trains twice."""
    run = tmp_path / "together"
    done = finish(start(shop.path, "--out", run, "--epochs", 6, *LINE))
    assert [code for code, _ in done] == [0, 0], done
    opened = load_run(run)
    assert opened.metrics is not None
    settings = {"d": 16, "learning_rate": 0.01, "epochs": 6}
    single = [
        alone(shop, None, tmp_path / str(seed), seed=seed, **settings)
        for seed in range(3)
    ]
    for metric in ("recall@20", "mrr@20"):
        found = [one[metric] for one in single]
        spread = max(found) - min(found)
        assert (
            min(found) - spread - 0.02
            < opened.metrics[metric]
            < max(found) + spread + 0.02
        )
    assert listed(run) == listed(tmp_path / "0")
    assert command("evaluate", run, shop.path).code == 0


def test_two_processes_take_the_steps_of_one(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    """Two halves of a batch have the gradient of the whole; nothing is random but the order, which
    they share."""
    assert len(shop.train) % EXACT["batch_size"] == 0
    settings = [f"--set={name}={value}" for name, value in EXACT.items()]
    line = (
        shop.path,
        "--model",
        "posrec",
        "--out",
        tmp_path / "together",
        "--device",
        "cpu",
        "--no-export",
    )
    done = finish(start(*line, *settings))
    assert [code for code, _ in done] == [0, 0], done
    alone(shop, "posrec", tmp_path / "alone", **EXACT)
    expected, found = (epochs_of(tmp_path / name) for name in ("alone", "together"))
    assert [line["steps"] for line in found] == [line["steps"] for line in expected]
    assert [line["loss"] for line in found] == pytest.approx(
        [line["loss"] for line in expected], rel=1e-4
    )


def test_a_killed_process_ends_the_other_and_the_run_is_resumed_by_one(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    line = (shop.path, "--out", run, "--model", "sasrec", *LINE, "--epochs", 60)
    processes = start(*line)
    while not (run / STATE).exists() and processes[0].poll() is None:
        time.sleep(0.01)
    processes[1].kill()
    (code, errors), _ = finish(processes)
    assert code == 1, errors
    assert (
        "error: process 0: another process of the training has ended"
        in errors.splitlines()[-1]
    )
    assert "continue with the same command and --resume" in errors
    assert "Traceback" not in errors
    done = command("train", *line, "--resume")
    assert done.code == 0, done.err
    assert "resuming after epoch" in done.err
    assert [entry["epoch"] for entry in epochs_of(run)] == list(range(1, 61))


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    line = (shop.path, "--out", run, "--model", "sasrec", *LINE, "--epochs", 400)
    processes = start(*line)
    while not (run / STATE).exists() and processes[0].poll() is None:
        time.sleep(0.01)
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
    line = (shop.path, "--out", tmp_path / "run", "--model", "sasrec", *LINE)
    (code, errors), (other, _) = finish(start(*line, of_second=("--seed", 3)))
    assert (code, other) == (2, 2), errors
    assert (
        "process 0 and process 1 of the training have different data or options: seed is 0, and 3;"
        in errors
    )
    assert "Traceback" not in errors
    assert listed(tmp_path) == []


def test_a_model_that_counts_is_counted_by_the_first_process(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    done = finish(
        start(shop.path, "--model", "pop", "--out", tmp_path / "run", "--device", "cpu")
    )
    assert [code for code, _ in done] == [0, 0], done
    assert load_run(tmp_path / "run").metrics is not None
