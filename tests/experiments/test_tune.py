"""Tuning: on validation alone, resumed, pruned, and the command that it ends with."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import RecordingProgress, command, listed

import posrec
from posrec.config import Range
from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunFailed
from posrec.experiments import tune as module
from posrec.experiments.tune import Tuned, train_command, tune
from posrec.io import read_json
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress
from posrec.testing import write_dataset
from posrec.training.settings import Settings

FAST = {"d": 8, "batch_size": 64, "learning_rate": 0.02}


def defaults_of(model: str) -> dict[str, Any]:
    spec = MODELS[model]
    return {**vars(Settings(**spec.settings)), **vars(spec.config())}


def test_every_model_has_a_space_with_its_own_settings_in_it() -> None:
    without = {model for model, spec in MODELS.items() if not spec.search_space}
    assert without == {"pop", "spop"}
    for model, spec in MODELS.items():
        assert spec.is_trained == ("learning_rate" in spec.search_space)
        defaults = defaults_of(model)
        for name, values in spec.search_space.items():
            assert defaults[name] in values, f"{model} {name}={defaults[name]}"


@pytest.mark.parametrize("model", ["coclick", "posrec-plus"])
def test_a_single_session_can_not_be_split(model: str, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [["a", "b", "c"]], [["a", "b"]])
    with pytest.raises(InputError, match="too few training sessions"):
        tune(data, model, trials=1, device="cpu", progress=SilentProgress())


def test_a_search_is_resumed_and_starts_with_the_default_settings(
    small: PreparedDataset, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"epochs": 2, "device": "cpu"}
    first = tune(small, "posrec", 2, tmp_path, FAST, **options)
    assert first.trials == 2
    recorded = RecordingProgress()
    more = tune(small, "posrec", 3, tmp_path, FAST, progress=recorded, **options)
    assert more.trials == 3
    continued, trial = recorded.messages
    assert continued == f"continuing after 2 trials in {tmp_path / 'study.db'}"
    value = r"(mrr@20|stopped early at mrr@20) \d+\.\d\d"
    assert re.match(rf"trial 3 of 3: {value}; l2=", trial)
    history = read_json(tmp_path / "tuning.json")["history"]
    # Every trial has every setting that is searched, and the first has the defaults.
    searched = MODELS["posrec"].search_space.keys() - FAST.keys()
    assert [set(trial["settings"]) for trial in history] == [searched] * 3
    defaults = defaults_of("posrec")
    assert history[0]["settings"] == {name: defaults[name] for name in searched}
    assert more.default_value == history[0]["mrr@20"] == first.default_value
    complete = [trial for trial in history if trial["state"] == "complete"]
    best = max(complete, key=lambda trial: trial["mrr@20"])
    assert (more.value, more.settings) == (best["mrr@20"], best["settings"])
    assert more.value >= first.value
    assert tune(small, "posrec", 3, tmp_path, FAST, **options) == more


def test_the_test_part_is_not_looked_at(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = property(lambda _: pytest.fail("the test part was read"))
    monkeypatch.setattr(PreparedDataset, "test", read, raising=False)
    assert tune(small, "itemknn", 2, device="cpu").trials == 2
    assert tune(small, "stamp", 1, fixed=FAST, epochs=1, device="cpu").trials == 1


def test_a_hopeless_trial_is_cut(small: PreparedDataset, tmp_path: Path) -> None:
    """Rates that learn nothing, after enough trials that did."""
    fixed = {"d": 8, "batch_size": 64, "l2": 0.0, "steps": 1, "anchors": False}
    good = replace(MODELS["srgnn"], search={"learning_rate": Range(0.001, 0.02)})
    hopeless = replace(MODELS["srgnn"], search={"learning_rate": Range(1e-9, 2e-9)})
    tune(small, good, 5, tmp_path, fixed, epochs=4, device="cpu")
    tuned = tune(small, hopeless, 7, tmp_path, fixed, epochs=4, device="cpu")
    states = [trial["state"] for trial in tuned.history]
    assert tuned.pruned >= 2
    assert states[-2:] == ["pruned", "pruned"]
    assert "complete" in states


def test_failed_trials_end_the_search_only_if_all_fail(small: PreparedDataset) -> None:
    hot = replace(MODELS["stamp"], search={"learning_rate": Range(1e29, 1e30)})
    fixed = {"d": 8, "batch_size": 64}
    with pytest.raises(RunFailed, match="none of 2 trials succeeded"):
        tune(small, hot, 2, fixed=fixed, epochs=1, device="cpu")


def test_the_command_it_ends_with_trains(
    small: PreparedDataset, tmp_path: Path
) -> None:
    options = ("--trials", 1, "--epochs", 1, "--set", "d=8", "--device", "cpu")
    out = ("--out", tmp_path / "tuning")
    done = command("tune", small.path, "--model", "sasrec", *out, *options)
    assert done.code == 0, done.err
    line = done.out.strip().splitlines()[-1]
    begin = f"posrec train {small.path} --model sasrec --out runs/tuned"
    assert line.startswith(f"{begin} --protocol early-stop --epochs 1")
    arguments = shlex.split(line)[1:]
    arguments[arguments.index("runs/tuned")] = str(tmp_path / "run")
    assert command(*arguments).code == 0


def test_counting_models_get_no_protocol() -> None:
    tuned = Tuned({"k": 100}, 0.1, "mrr@20", None, 1, 0, 0)
    line = train_command(Path("shop"), "vsknn", tuned, {"idf": "5"}, 9)
    begin = "posrec train shop --model vsknn --out runs/tuned"
    assert line == f"{begin} --set idf=5 --set k=100"


def test_the_default_model_may_train_for_longer_than_its_epochs() -> None:
    tuned = Tuned({}, 0.1, "mrr@20", None, 1, 0, 0)
    line = train_command(Path("shop"), "posrec-plus", tuned, {})
    assert "--epochs" not in line
    assert "--epochs 6" in train_command(Path("shop"), "posrec-plus", tuned, {}, 6)


def test_a_setting_of_the_model_has_the_models_default(small: PreparedDataset) -> None:
    """`decay` is a setting of coclick and of training; the first trial has coclick's."""
    tuned = tune(small, "coclick", 1, device="cpu", progress=SilentProgress())
    assert tuned.history[0]["settings"]["decay"] == MODELS["coclick"].config().decay
    assert tuned.default_value == tuned.value


def test_without_a_folder_nothing_is_kept(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuned = posrec.tune(small, "itemknn", trials=3, progress=SilentProgress())
    assert listed(tmp_path) == []
    frame = tuned.to_frame()
    assert frame["mrr@20"].max() == tuned.value
    assert frame.columns[:3] == ["trial", "state", "mrr@20"]
    assert frame.columns[3:] == ["neighbours", "regularization", "alpha"]
    value = f"mrr@20 {100 * tuned.value:.2f} % on validation after 3 trials"
    assert repr(tuned).startswith(f"Tuned({value}: neighbours=")
    assert len(repr(tuned)) < 120


@pytest.mark.parametrize(
    ("model", "fixed", "message"),
    [
        ("pop", {}, "pop has nothing to tune"),
        ("nobody", {}, "'nobody' is not known"),
        ("stamp", {"protocol": "paper"}, "protocol can't be fixed"),
        (replace(MODELS["stamp"], search={"depth": (1,)}), {}, "do not exist: depth"),
        ("stamp", {"depth": "3"}, "no setting 'depth'"),
    ],
)
def test_what_is_refused(
    small: PreparedDataset,
    tmp_path: Path,
    model: Any,
    fixed: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(InputError, match=message):
        tune(small, model, 1, tmp_path / "out", fixed)
    assert not (tmp_path / "out").exists()


def test_optuna_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'posrec\[tune\]'"):
        module.import_optuna()
