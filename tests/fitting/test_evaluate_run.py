"""A run is not evaluated on what it was trained on; interrupted in its evaluation, it is whole."""

import math
from pathlib import Path

import pytest

from posrec.errors import InputError, RunFailed
from posrec.fitting.evaluate_run import evaluate, evaluate_run
from posrec.io import (
    WEIGHTS,
    changing,
    load_tensors,
    read_json,
    save_tensors,
    write_json,
)
from posrec.progress import SilentProgress
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from posrec.testing import write_dataset
from tests.helpers import command, fitted

SESSIONS = [[f"i{(number + step) % 7}" for step in range(4)] for number in range(20)]
SEEN = r"may have been trained on 5 of the 10 test sessions of .*larger"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Of a model that counts, trained on the first 15 sessions."""
    data = write_dataset(tmp_path / "data", SESSIONS[:15], SESSIONS[15:])
    return fitted(data, "vsknn", tmp_path / "run")[0]


def test_another_split_of_the_same_log_is_refused(run: Run, tmp_path: Path) -> None:
    larger = write_dataset(tmp_path / "larger", SESSIONS[:10], SESSIONS[10:])
    before = (run.path / "metrics.json").read_text()
    for match_ids in (False, True):
        with pytest.raises(InputError, match=SEEN):
            evaluate_run(run, larger, "cpu", SilentProgress(), match_ids=match_ids)
    with pytest.raises(InputError, match=SEEN):
        evaluate(Recommender(run, "cpu"), larger, SilentProgress())
    assert (run.path / "metrics.json").read_text() == before
    larger.manifest["format"] = "sessions"  # a log without times
    assert len(evaluate_run(run, larger, "cpu", SilentProgress()).ranks) == 30


def test_a_later_test_part_is_not(run: Run, tmp_path: Path) -> None:
    smaller = write_dataset(tmp_path / "smaller", SESSIONS[:17], SESSIONS[17:])
    assert len(evaluate_run(run, smaller, "cpu", SilentProgress()).ranks) == 9


def test_weights_that_are_not_numbers(tmp_path: Path) -> None:
    """A sentence and exit code 1; the run keeps its metrics, and no JSON file holds NaN."""
    data = write_dataset(tmp_path / "data", SESSIONS[:15], SESSIONS[15:])
    run, _ = fitted(data, "posrec", tmp_path / "run", {"d": 8, "epochs": 1})
    before = (run.path / "metrics.json").read_text()
    weights, about = load_tensors(run.path / WEIGHTS)
    broken = {name: weight * math.nan for name, weight in weights.items()}
    with changing(run.path, WEIGHTS):
        save_tensors(run.path / WEIGHTS, broken, about)
    done = command("evaluate", run.path, data.path, "--device", "cpu")
    assert done.code == 1
    assert "NaN" in done.err
    assert len(done.err.splitlines()) == 1
    assert (run.path / "metrics.json").read_text() == before


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_no_json_file_holds_what_is_not_json(figure: float, tmp_path: Path) -> None:
    write_json(tmp_path / "metrics.json", {"recall@20": 0.5})
    with pytest.raises(RunFailed, match="finite"):
        write_json(tmp_path / "metrics.json", {"recall@20": figure})
    assert read_json(tmp_path / "metrics.json") == {"recall@20": 0.5}


class StopInEvaluation(SilentProgress):
    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        if work == "Evaluating":
            raise KeyboardInterrupt


def test_a_run_that_was_interrupted_in_its_evaluation(tmp_path: Path) -> None:
    """It recommends, and `--resume` evaluates it."""
    data = write_dataset(tmp_path / "data", SESSIONS[:15], SESSIONS[15:])
    with pytest.raises(KeyboardInterrupt):
        fitted(data, "coclick", tmp_path / "run", progress=StopInEvaluation())
    assert not (tmp_path / "run" / "ranks.npy").exists()
    done = command("recommend", tmp_path / "run", "i3")
    assert done.code == 0, done.err
    options = ("--model", "coclick", "--resume", "--no-export")
    done = command("train", data.path, "--out", tmp_path / "run", *options)
    assert done.code == 0, done.err
    whole, _ = fitted(data, "coclick", tmp_path / "whole")
    for name in ("ranks.npy", "metrics.json", "model.safetensors"):
        resumed = (tmp_path / "run" / name).read_bytes()
        assert resumed == (whole.path / name).read_bytes()
    assert load_run(tmp_path / "run").metrics is not None
