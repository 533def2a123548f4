"""Tuning: on validation alone, resumed, stopped early, equal budgets, and the commands at the
end."""

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import posrec
from posrec.config import Range, SearchSpace
from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunFailed
from posrec.experiments.tune import (
    Budget,
    HopelessTrial,
    TrialProgress,
    Tuned,
    draw_trials,
    train_command,
    tune,
    tune_models,
)
from posrec.io import read_json
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress
from posrec.testing import write_dataset
from posrec.training.settings import Settings
from tests.helpers import RecordingProgress, command, listed

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
    assert continued == f"continuing after 2 trials in {tmp_path / 'tuning.json'}"
    value = r"(mrr@20|stopped early at mrr@20) \d+\.\d\d"
    assert re.match(rf"posrec, trial 3 of 3: {value}; l2=", trial)
    history = read_json(tmp_path / "tuning.json")["posrec"]["history"]
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
    with pytest.raises(InputError, match="a search of posrec with seed 0, now 1"):
        tune(small, "posrec", 3, tmp_path, FAST, seed=1, **options)
    (tmp_path / "tuning.json").write_text("[1]")
    with pytest.raises(InputError, match="was not written by posrec tune"):
        tune(small, "posrec", 3, tmp_path, FAST, **options)


SPACE: SearchSpace = {"k": (1, 2, 3), "rate": Range(0.001, 0.1)}


@given(seed=st.integers(0, 100), first=st.integers(1, 9))
def test_more_trials_begin_with_those_of_fewer(seed: int, first: int) -> None:
    draws = draw_trials(SPACE, {"k": 2, "rate": 0.01}, Budget(12, seed=seed))
    assert draws[0] == {"k": 2, "rate": 0.01}
    shorter = draw_trials(SPACE, {"k": 2, "rate": 0.01}, Budget(first, seed=seed))
    assert draws[:first] == shorter
    for draw in draws:
        assert draw["k"] in (1, 2, 3)
        assert 0.001 <= draw["rate"] <= 0.1


def test_the_logarithm_of_a_range_is_drawn_uniformly() -> None:
    draws = draw_trials(SPACE, {"k": 9, "rate": 0.01}, Budget(3000))  # 9 is not drawn
    shares = [math.log(draw["rate"] / 0.001) / math.log(100) for draw in draws]
    for tenth in range(1, 10):
        below = sum(share < tenth / 10 for share in shares) / len(shares)
        assert below == pytest.approx(tenth / 10, abs=0.04)


def test_a_small_space_ends_the_search_early(small: PreparedDataset) -> None:
    spec = replace(MODELS["vsknn"], search={"k": (100, 300)})
    tuned = tune(small, spec, 9, device="cpu", progress=SilentProgress())
    assert [trial["settings"]["k"] for trial in tuned.history] == [300, 100]


def test_models_take_turns_and_are_chosen_by_one_metric(
    small: PreparedDataset, tmp_path: Path
) -> None:
    recorded = RecordingProgress()
    fixed = {"max_length": 20}
    budget = Budget(2, epochs=1)
    models = ["stan", "coclick"]
    tuned = tune_models(small, models, budget, tmp_path, fixed, "cpu", recorded)
    begins = [message.split(" of ")[0] for message in recorded.messages]
    turns = ["stan, trial 1", "coclick, trial 1", "stan, trial 2", "coclick, trial 2"]
    assert begins == turns
    for model in models:
        assert (tuned[model].trials, tuned[model].metric) == (2, "ndcg@20")
        alone = tune(
            small, model, 2, fixed={**fixed, "choose_by": "ndcg@20"}, device="cpu"
        )
        assert alone.value == pytest.approx(tuned[model].value)
    options = ("--trials", 2, "--epochs", 1, "--set", "max_length=20")
    out = ("--device", "cpu", "--out", tmp_path)
    done = command("tune", small.path, "--models", "stan,coclick", *options, *out)
    assert done.code == 0, done.err
    value = f"{100 * tuned['stan'].value:.2f}"
    default = f"{100 * (tuned['stan'].default_value or 0):.2f}"
    assert re.search(rf"^stan +2 +0 +0 +{default} +{value} ", done.out, re.MULTILINE)
    assert "ndcg@20 on validation, in percent, of trials with seed 0" in done.out
    begin = f"posrec train {small.path} --model coclick --out runs/tuned --set"
    assert done.out.splitlines()[-1].startswith(begin)


def test_the_test_part_is_not_looked_at(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = property(lambda _: pytest.fail("the test part was read"))
    monkeypatch.setattr(PreparedDataset, "test", read, raising=False)
    assert tune(small, "itemknn", 2, device="cpu").trials == 2
    assert tune(small, "stamp", 1, fixed=FAST, epochs=1, device="cpu").trials == 1


@pytest.mark.parametrize(
    ("others", "values", "is_hopeless"),
    [
        # The median at epoch 2 is 0.4.
        ([[0.1, 0.3], [0.1, 0.4], [0.1, 0.5], [0.1]], [0.1, 0.39], True),
        ([[0.1, 0.3], [0.1, 0.4], [0.1, 0.5], [0.1]], [0.1, 0.4], False),
        ([[0.1, 0.3], [0.1, 0.4], [0.1, 0.5], [0.1]], [0.41, 0.2], False),
        ([[0.3], [0.4], [0.5], [0.6]], [0.1], False),  # the first epoch
        ([[0.1, 0.3], [0.1, 0.4], [0.1, 0.5]], [0.1, 0.2], False),  # too few others
        ([[0.1], [0.1], [0.1], [0.1]], [0.1, 0.2], False),  # none came so far
    ],
)
def test_which_trial_is_hopeless(
    others: list[list[float]], values: list[float], is_hopeless: bool
) -> None:
    progress = TrialProgress("mrr@20", others)
    for epoch, value in enumerate(values[:-1], start=1):
        progress.validated(epoch, {"mrr@20": value})
    ended = False
    try:
        progress.validated(len(values), {"mrr@20": values[-1]})
    except HopelessTrial:
        ended = True
    assert ended == is_hopeless
    assert progress.by_epoch == values


def test_a_hopeless_trial_is_cut(small: PreparedDataset) -> None:
    """Half of the rates learn nothing."""
    rates = (0.02, 0.015, 0.01, 1e-9, 2e-9, 3e-9, 4e-9)
    spec = replace(MODELS["srgnn"], search={"learning_rate": rates})
    fixed = {"d": 8, "batch_size": 64, "l2": 0.0, "steps": 1}
    tuned = tune(small, spec, 7, fixed=fixed, epochs=3, device="cpu")
    assert tuned.settings["learning_rate"] > 0.001
    assert tuned.pruned >= 1
    for number, trial in enumerate(tuned.history):
        assert trial["state"] in ("complete", "pruned")
        if trial["state"] == "pruned":
            assert number >= 4
            assert len(trial["by_epoch"]) >= 2


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
    tuned = Tuned({"k": 100}, 0.1, "mrr@20", None, 1, 0, 0, 1.0)
    line = train_command(Path("shop"), "vsknn", tuned, {"idf": "5"}, 9)
    begin = "posrec train shop --model vsknn --out runs/tuned"
    assert line == f"{begin} --set idf=5 --set k=100"


def test_the_default_model_may_train_for_longer_than_its_epochs() -> None:
    tuned = Tuned({}, 0.1, "mrr@20", None, 1, 0, 0, 1.0)
    line = train_command(Path("shop"), "posrec-plus", tuned, {})
    assert "--epochs" not in line
    assert "--epochs 6" in train_command(Path("shop"), "posrec-plus", tuned, {}, 6)
    assert "--set choose_by=mrr@20" in line


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
    assert frame.columns[3:] == list(tuned.settings)
    value = f"mrr@20 {100 * tuned.value:.2f} % on validation after 3 trials"
    assert repr(tuned).startswith(f"Tuned({value}: neighbours=")
    assert len(repr(tuned)) < 150


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
