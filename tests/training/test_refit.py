"""Protocol `refit`: epochs chosen on validation, then all sessions; stopped and resumed in either
part."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunFailed, RunStopped
from posrec.fitting.fit import fit_run
from posrec.io import WEIGHTS, load_tensors
from posrec.progress import Progress, SilentProgress
from posrec.testing import same, write_dataset

QUICK = {
    "d": 16,
    "epochs": 6,
    "batch_size": 32,
    "learning_rate": 0.01,
    "max_length": 10,
    "dropout": 0.1,
    "patience": 1,
}


def fit(
    data: PreparedDataset,
    out: Path,
    progress: Progress | None = None,
    resume: bool = False,
    **changes: Any,
) -> Path:
    settings = {**QUICK, "protocol": "refit", **changes}
    return fit_run(
        data,
        "posrec",
        out,
        settings,
        "cpu",
        resume,
        progress or SilentProgress(),
        export=False,
    )[0].path


def weights(run: Path) -> dict[str, Any]:
    return load_tensors(run / WEIGHTS)[0]


def test_it_trains_on_all_sessions_for_the_best_number_of_epochs(
    small: PreparedDataset, tmp_path: Path
) -> None:
    run = fit(small, tmp_path / "refit")
    chosen = json.loads((run / "selection.json").read_text())
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    validated = {
        line["epoch"]: line["validation"]["mrr@20"]
        for line in log
        if "validation" in line
    }
    assert chosen == {
        "epochs": max(validated, key=lambda epoch: validated[epoch]),
        "mrr@20": max(validated.values()),
    }
    assert [line["epoch"] for line in log if "part" not in line] == list(
        range(1, chosen["epochs"] + 1)
    )
    fixed = fit(small, tmp_path / "fixed", protocol="paper", epochs=chosen["epochs"])
    assert same(
        weights(run), weights(fixed)
    )  # trained on everything, from the same seed
    assert not (run / "selection").exists()


class StopAfter(SilentProgress):
    """Sends SIGTERM after so many updates of the progress of an epoch."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        self.left -= work.startswith("Epoch")
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


def test_a_run_stopped_in_either_part_ends_with_the_weights_of_a_whole_one(
    small: PreparedDataset, tmp_path: Path
) -> None:
    whole = fit(small, tmp_path / "whole", epochs=2, patience=2)
    steps = sum(
        "loss" in json.loads(line)
        for line in (whole / "log.jsonl").read_text().splitlines()
    )
    assert steps >= 3  # epochs in all
    with pytest.raises(RunStopped):
        fit(small, tmp_path / "cut", StopAfter(3), epochs=2, patience=2)
    assert (tmp_path / "cut" / "selection").is_dir()
    with pytest.raises(RunStopped):  # past the rest of the first part
        fit(
            small,
            tmp_path / "cut",
            StopInSecondPart(),
            resume=True,
            epochs=2,
            patience=2,
        )
    assert (tmp_path / "cut" / "selection.json").exists()
    assert not (tmp_path / "cut" / WEIGHTS).exists()
    fit(small, tmp_path / "cut", resume=True, epochs=2, patience=2)
    assert same(weights(tmp_path / "cut"), weights(whole))


class StopInSecondPart(StopAfter):
    def __init__(self) -> None:
        super().__init__(-1)

    def message(self, text: str) -> None:
        if text.startswith("training on all sessions"):
            self.left = 2


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
    tenth = fit(
        small, tmp_path / "tenth", protocol="early-stop", epochs=1
    )  # it has not seen the validation part
    out = tmp_path / "out"
    fit_run(
        small,
        None,
        out,
        {"protocol": "refit", "epochs": 1},
        "cpu",
        progress=SilentProgress(),
        start_from=tenth,
        export=False,
    )
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    (steps,) = [line["steps"] for line in log if "loss" in line and "part" not in line]
    assert steps == -(-len(small.train) // QUICK["batch_size"])


@pytest.mark.parametrize("protocol", ["early-stop", "refit"])
@pytest.mark.parametrize("model", ["posrec", "posrec-plus"])
def test_a_single_session_can_not_be_split(
    tmp_path: Path, protocol: str, model: str
) -> None:
    """It is the validation part, so that none is left to fit."""
    data = write_dataset(tmp_path / "data", [["a", "b", "c"]], [["a", "b"]])
    with pytest.raises(
        InputError, match=r"too few training sessions to validate .*--protocol paper"
    ):
        fit_run(
            data,
            model,
            tmp_path / "run",
            {"protocol": protocol},
            "cpu",
            progress=SilentProgress(),
        )
    assert not (tmp_path / "run").exists()
