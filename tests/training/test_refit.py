"""Protocol `refit`: epochs chosen on validation, then all sessions; stopped and resumed in either
part."""

import json
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunFailed, RunStopped
from posrec.fitting.job import configs_of
from posrec.io import WEIGHTS
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress
from posrec.testing import same, write_dataset
from posrec.training.loop import Training, TrainingContext
from posrec.training.settings import Settings
from tests.helpers import fitted
from tests.training.runs import log_of, weights_of

QUICK = {
    "d": 16,
    "epochs": 6,
    "batch_size": 32,
    "learning_rate": 0.01,
    "max_length": 10,
    "dropout": 0.1,
    "patience": 1,
    "protocol": "refit",
}


def fit(data: PreparedDataset, out: Path, **changes: Any) -> Path:
    return fitted(data, "posrec", out, {**QUICK, **changes})[0].path


def test_it_trains_on_all_sessions_for_the_best_number_of_epochs(
    small: PreparedDataset, tmp_path: Path
) -> None:
    run = fit(small, tmp_path / "refit")
    chosen = json.loads((run / "selection.json").read_text())
    log = log_of(run)
    validated = {
        line["epoch"]: line["validation"]["mrr@20"]
        for line in log
        if "validation" in line
    }
    best = max(validated, key=lambda epoch: validated[epoch])
    assert chosen == {"epochs": best, "mrr@20": validated[best]}
    epochs = [line["epoch"] for line in log if "part" not in line]
    assert epochs == list(range(1, best + 1))
    # It trained on everything, from the same seed.
    fixed = fit(small, tmp_path / "fixed", protocol="paper", epochs=best)
    assert same(weights_of(run), weights_of(fixed))
    assert not (run / "selection").exists()


class Scripted(Training):
    """Trains as usual, and then finds these values on validation."""

    values: Iterator[float]

    def validate(self) -> dict[str, float]:
        return {"mrr@20": next(self.values)}


@pytest.mark.parametrize(
    ("values", "best"),
    [
        # Two falls end it; a rise of less than 2 % in the second half does not extend it.
        ([0.40, 0.39, 0.38], 1),
        ([0.30, 0.40, 0.402, 0.405], 4),
        # It may rise again after a fall.
        ([0.40, 0.395, 0.396, 0.402], 4),
        ([0.30, 0.40, 0.45, 0.449], 3),
        # Extended by eight epochs at most. That it falls at first does not end it.
        ([0.30, 0.40, 0.45, 0.46, 0.42, 0.45, 0.47, 0.46, 0.46], 7),
        ([0.30, 0.40, 0.45, 0.46] + [0.47 + epoch / 1000 for epoch in range(8)], 12),
    ],
)
def test_it_is_extended_where_validation_still_rises_and_ends_where_it_falls(
    small: PreparedDataset, tmp_path: Path, values: list[float], best: int
) -> None:
    settings = Settings(
        protocol="early-stop", epochs=4, extend=True, batch_size=500, schedule="cosine"
    )
    model = PosRec(small.train_items, PosRecConfig(d=4, max_length=5))
    context = TrainingContext(tmp_path, torch.device("cpu"), SilentProgress())
    training = Scripted(model, small, settings, context)
    training.values = iter(values)
    state = training.run()
    assert state.epoch == len(values)
    assert (state.best_epoch, state.best) == (best, values[best - 1])
    rates = [line["learning_rate"] for line in log_of(tmp_path) if "loss" in line]
    rises = [after > before for before, after in pairwise(rates)]
    # The learning rate rises only where a second cycle begins.
    assert [n + 1 for n, rise in enumerate(rises) if rise] == [4] * (len(values) > 4)


def test_epochs_that_the_user_has_set_are_the_most() -> None:
    for settings, extend in (({}, True), ({"epochs": "3"}, False)):
        assert configs_of(MODELS["posrec-plus"], settings)[1].extend is extend


class StopAfter(SilentProgress):
    """Sends SIGTERM after `updates` updates of the progress of an epoch."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        self.left -= work.startswith("Epoch")
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


class StopInSecondPart(StopAfter):
    def __init__(self) -> None:
        super().__init__(-1)

    def message(self, text: str) -> None:
        if text.startswith("training on all sessions"):
            self.left = 2


def test_a_run_stopped_in_either_part_ends_with_the_weights_of_an_uncut_one(
    small: PreparedDataset, tmp_path: Path
) -> None:
    uncut = fit(small, tmp_path / "uncut", epochs=2, patience=2)
    epochs = [line for line in log_of(uncut) if "loss" in line]
    assert len(epochs) >= 3  # of both parts
    cut = tmp_path / "cut"
    settings = {**QUICK, "epochs": 2, "patience": 2}
    with pytest.raises(RunStopped):
        fitted(small, "posrec", cut, settings, progress=StopAfter(3))
    assert (cut / "selection").is_dir()
    stop = StopInSecondPart()
    with pytest.raises(RunStopped):  # past the rest of the first part
        fitted(small, "posrec", cut, settings, progress=stop, resume=True)
    assert (cut / "selection.json").exists()
    assert not (cut / WEIGHTS).exists()
    fitted(small, "posrec", cut, settings, resume=True)
    assert same(weights_of(cut), weights_of(uncut))


def test_a_choice_that_fails_at_once_frees_the_folder(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RunFailed("at once")

    monkeypatch.setattr("posrec.training.loop.Training.run", fail)
    with pytest.raises(RunFailed):
        fit(small, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_from_a_run_both_parts_train_on_all_their_sessions(
    small: PreparedDataset, tmp_path: Path
) -> None:
    """The number of epochs that the first part chooses is one of epochs of the same kind."""
    # It has not seen the validation sessions.
    first = fit(small, tmp_path / "first", protocol="early-stop", epochs=1)
    settings = {"protocol": "refit", "epochs": 1}
    run, _ = fitted(small, None, tmp_path / "next", settings, start_from=first)
    log = log_of(run.path)
    (steps,) = [line["steps"] for line in log if "loss" in line and "part" not in line]
    assert steps == -(-len(small.train) // 32)


@pytest.mark.parametrize("protocol", ["early-stop", "refit"])
@pytest.mark.parametrize("model", ["posrec", "posrec-plus"])
def test_a_single_session_can_not_be_split(
    tmp_path: Path, protocol: str, model: str
) -> None:
    """It is the validation part, so that none is left to fit."""
    data = write_dataset(tmp_path / "data", [["a", "b", "c"]], [["a", "b"]])
    with pytest.raises(InputError, match="too few training sessions"):
        fitted(data, model, tmp_path / "run", {"protocol": protocol})
    assert not (tmp_path / "run").exists()
