"""Warm start: what a run gives to a model of other items, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.warm_start import WarmStart
from posrec.models.base import Model, SessionModel
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from posrec.testing import known_settings, write_dataset
from tests.helpers import (
    RecordingProgress,
    chain_shop,
    command,
    fitted,
    items_of,
    raw,
    refused,
    slowly,
)

QUICK: dict[str, Any] = {
    "d": 16,
    "hidden": 16,
    "epochs": 6,
    "batch_size": 32,
    "learning_rate": 0.02,
    "max_length": 10,
}
TRAINED = [name for name, spec in MODELS.items() if spec.is_trained]
# Item x is new and clicked between i3 and i4; y is new and clicked next to x alone; i10 to i29 have
# gone.
NEW_SESSIONS = [
    ["i1", "i2", "i3", "x", "i4"],
    ["i5", "i6", "i7", "i8", "i9"],
    ["i0", "i1", "i2"],
]
NEW_TRAIN = [*NEW_SESSIONS * 8, ["x", "y"]]
# When the newer datasets begin: after all sessions that the runs are trained on.
LATER = 1000


def fit(
    data: PreparedDataset,
    model: str | None,
    out: Path,
    start_from: Path | None = None,
    **changes: Any,
) -> Run:
    settings = known_settings(MODELS[model], changes) if model in MODELS else changes
    return fitted(data, model, out, settings, start_from=start_from)[0]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("newer") / "data"
    test = [["i1", "i2", "i3"], ["x", "i4", "z"]]
    return write_dataset(folder, NEW_TRAIN, test, LATER)


def started(run: Run, data: PreparedDataset) -> SessionModel:
    """A new model of the run's settings after the warm start, before any step."""
    torch.manual_seed(1)
    spec = MODELS[run.config["model"]]
    network = spec.build(data.train_items, run.model.config)
    assert isinstance(network, SessionModel)
    network.count(data.train.items, data.train.offsets)
    WarmStart(run, data.vocabulary, data.train_items).set_weights(network, data.train)
    return network.eval()


def vector(model: Model, vocabulary: Vocabulary, item: str) -> torch.Tensor:
    return model.similarity_vectors()[vocabulary.index(item) - 1]


@pytest.fixture(params=["trained", "trained_plus"])
def start(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_known_items_keep_their_vectors_and_the_network_its_weights(
    start: Path, newer: PreparedDataset
) -> None:
    run = load_run(start)
    network = started(run, newer)
    for item in ("i0", "i5", "i9"):
        moved = vector(network, newer.vocabulary, item)
        assert torch.allclose(moved, vector(run.model, run.vocabulary, item), atol=1e-5)
    before = run.model.state_dict()
    now = network.state_dict()
    of_items = ("embedding", "trends.now")
    copied = [name for name in now if not any(part in name for part in of_items)]
    assert len(copied) > 10
    assert all(torch.equal(before[name], now[name]) for name in copied)


def co_clicked_with_x(run: Run) -> torch.Tensor:
    """x is 8 times next to i3, 8 times next to i4 and 8 times two clicks from i2, which counts
    half."""
    i2, i3, i4 = (
        vector(run.model, run.vocabulary, item) for item in ("i2", "i3", "i4")
    )
    return 8 * i3 + 8 * i4 + 4 * i2


def test_a_new_item_starts_from_its_neighbours(
    trained: Path, newer: PreparedDataset
) -> None:
    run = load_run(trained)
    network = started(run, newer)
    expected = co_clicked_with_x(run) / 20
    # The only neighbour of y is x.
    for item in ("x", "y"):
        moved = vector(network, newer.vocabulary, item)
        assert torch.allclose(moved, expected, atol=1e-6)


def test_a_new_item_starts_from_items_with_its_attributes(
    trained: Path, newer: PreparedDataset
) -> None:
    run = load_run(trained)
    ids = newer.vocabulary.ids
    kinds = {"x": "tents", "i7": "tents", "i8": "tents", "i9": "mats", "i0": "mats"}
    vocabulary = Vocabulary(ids, {"category": [kinds.get(item) for item in ids]})
    network = started(run, replace(newer, vocabulary=vocabulary))
    i7, i8 = (vector(run.model, run.vocabulary, item) for item in ("i7", "i8"))
    expected = (co_clicked_with_x(run) + (i7 + i8) / 2) / 21
    assert torch.allclose(vector(network, vocabulary, "x"), expected, atol=1e-6)


def test_smoothing_is_undone_whatever_its_weight(
    newer: PreparedDataset, tmp_path: Path
) -> None:
    for smoothing in (0.0, 0.25, 0.9):
        settings = {**QUICK, "smoothing": smoothing, "protocol": "paper"}
        run = fit(newer, "posrec-plus", tmp_path / f"{smoothing}", **settings)
        vectors = run.model.similarity_vectors()
        moved = started(run, newer).similarity_vectors()
        assert torch.allclose(moved, vectors, atol=1e-4)


@pytest.mark.parametrize(
    "model", [name if name in ("posrec", "fpmc") else slowly(name) for name in TRAINED]
)
def test_every_trained_model_starts_from_a_run_and_is_evaluated(
    model: str, small: PreparedDataset, newer: PreparedDataset, tmp_path: Path
) -> None:
    before = fit(small, model, tmp_path / "before", **QUICK)
    run = fit(newer, None, tmp_path / "after", start_from=before.path)
    assert run.config["model"] == model
    assert (run.path / "metrics.json").exists()
    assert run.config["started_from"]["dataset"] == small.fingerprint
    training = run.config["training"]
    assert (training["protocol"], training["schedule"]) == ("paper", "cosine")
    assert (training["epochs"], training["warmup"]) == (6, 0)
    rate = before.config["training"]["learning_rate"]
    assert training["learning_rate"] == pytest.approx(0.1 * rate)
    # The third night is as long as the second.
    again = fit(newer, None, tmp_path / "again", start_from=run.path)
    assert again.config["training"] == training


def test_a_warm_start_is_ahead_of_as_many_steps_from_scratch(
    trained_plus: Path, tmp_path: Path
) -> None:
    # Items i30 and i31 are new.
    data = chain_shop(tmp_path, seed=5, items=32, prefix="i")
    steps = {"epochs": 1, "learning_rate": 0.005}
    _, warm = fitted(data, None, tmp_path / "warm", steps, start_from=trained_plus)
    quick = {**QUICK, **steps, "protocol": "paper"}
    settings = known_settings(MODELS["posrec-plus"], quick)
    _, scratch = fitted(data, "posrec-plus", tmp_path / "scratch", settings)
    assert warm.metrics["mrr@20"] > scratch.metrics["mrr@20"] + 0.1


def test_the_command_says_what_it_starts_from_and_settings_override(
    trained: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    options = ("--from", trained, "--epochs", 5, "--device", "cpu", "--no-export")
    done = command("train", newer.path, "--out", tmp_path / "run", *options)
    assert done.code == 0, done.err
    # i0 to i9 are known; x and y are new.
    counts = "10 items are known, 2 are new, 20 are no longer there"
    assert f"starting from {trained}: {counts}" in done.err.replace("\n", " ")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["model"], config["d"]) == ("posrec", 16)
    assert config["training"]["epochs"] == 5


def test_items_that_have_gone_are_kept_on_request(
    start: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    """`newer` has i0 to i9, x and y for training, and z in its test part alone; the run also knows
    i10 to i29."""
    out = tmp_path / "run"
    options = ("--keep-items", "--out", out, "--device", "cpu", "--no-export")
    assert "--keep-items needs --from" in refused("train", newer.path, *options)
    assert not out.exists()
    done = command("train", newer.path, "--from", start, *options)
    assert done.code == 0, done.err
    assert "keeping 20 items of the run that the dataset does not have" in done.err
    run = load_run(out)
    before = load_run(start)
    assert run.vocabulary.ids[:12] == newer.vocabulary.ids[:12]
    assert set(run.vocabulary.ids[12:32]) == {f"i{number}" for number in range(10, 30)}
    assert run.vocabulary.ids[32:] == ["z"]
    assert run.model.items == 32
    assert run.popularity is not None
    assert run.popularity[12:].tolist() == [0] * 20
    # Such an item is recommended, and is an input.
    answer = posrec.Recommender.load(out, "cpu").recommend(["i19"], k=32)
    assert "i20" in items_of(answer)
    now = vector(run.model, run.vocabulary, "i20")
    then = vector(before.model, before.vocabulary, "i20")
    assert torch.nn.functional.cosine_similarity(now, then, 0) > 0.5


def test_it_can_be_resumed_only_from_the_same_run(
    trained: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    fit(newer, None, tmp_path / "run", start_from=trained)
    with pytest.raises(InputError, match="started_from was"):
        fitted(newer, "posrec", tmp_path / "run", resume=True)
    fitted(newer, None, tmp_path / "run", resume=True, start_from=trained)


def test_fit_starts_from_a_folder_or_a_recommender(
    trained: Path, newer: PreparedDataset
) -> None:
    progress = RecordingProgress()
    first = posrec.fit(newer, device="cpu", progress=progress, start_from=trained)
    progress.messages.clear()
    second = posrec.fit(newer, device="cpu", progress=progress, start_from=first.run)
    assert second.run.config["model"] == "posrec"
    assert "12 items are known, 0 are new" in progress.messages[0]


def test_what_can_not_be_a_start_is_refused(
    trained: Path, counted: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    other = write_dataset(tmp_path / "other", [["a", "b", "c"]] * 10, [["a", "b"]])
    shape = r"the shape \(7, 16\), and the run has \(10, 16\)"
    for data, model, start, settings, message in (
        (newer, "posrec-plus", trained, {}, "holds posrec, not posrec-plus"),
        (newer, None, trained, {"d": 32}, "use the run's own settings"),
        (newer, None, trained, {"max_length": 7}, shape),
        (newer, None, counted, {}, "pop counts its sessions anew"),
        (other, None, trained, {}, "knows none of the items of the dataset"),
        (newer, None, tmp_path, {}, "is not a run folder"),
    ):
        with pytest.raises(InputError, match=message):
            fit(data, model, tmp_path / "run", start, **settings)
        assert not (tmp_path / "run").exists()


def messages_of(
    data: PreparedDataset, out: Path, start: Path, **settings: Any
) -> list[str]:
    progress = RecordingProgress()
    options: dict[str, Any] = {"start_from": start, "progress": progress}
    fitted(data, None, out, {"epochs": 1, **settings}, **options)
    return progress.messages


def test_an_epoch_that_is_chosen_on_sessions_which_the_run_knows_is_warned_of(
    trained: Path, small: PreparedDataset, tmp_path: Path
) -> None:
    messages = messages_of(small, tmp_path / "run", trained, protocol="early-stop")
    (warning,) = [text for text in messages if text.startswith("warning")]
    count = small.validation.sessions
    assert f"{count:,} of {count:,} validation sessions" in warning
    assert "use protocol=paper" in warning


def test_without_times_no_session_is_taken_for_new(
    trained: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    timeless = replace(newer, manifest={**newer.manifest, "format": "sessions"})
    messages = "\n".join(messages_of(timeless, tmp_path / "run", trained))
    assert "an epoch has all sessions" in messages
    assert "samples are new" not in messages


def test_a_run_is_evaluated_on_other_items_by_their_ids(
    trained: Path, small: PreparedDataset, tmp_path: Path
) -> None:
    run = load_run(trained)
    ids = run.vocabulary.ids
    # The same sessions, other numbers.
    test = raw(small.test, run.vocabulary)
    same = write_dataset(tmp_path / "same", [ids[::-1]], test, LATER)
    before = (run.path / "metrics.json").read_text()
    recall = pytest.approx(json.loads(before)["recall@20"])
    with pytest.raises(InputError, match="--match-ids"):
        evaluate_run(run, same, "cpu", SilentProgress())
    matched = evaluate_run(run, same, "cpu", SilentProgress(), match_ids=True)
    assert matched.metrics["recall@20"] == recall
    options = ("--match-ids", "--json", "--device", "cpu")
    done = command("evaluate", trained, same.path, *options)
    assert json.loads(done.out)["recall@20"] == recall
    # A target that the run does not know is a miss.
    train = [["new", *ids]]
    strange = write_dataset(tmp_path / "strange", train, [["i1", "new"]], LATER)
    missed = evaluate_run(run, strange, "cpu", SilentProgress(), match_ids=True)
    assert missed.metrics["recall@20"] == 0
    assert (run.path / "metrics.json").read_text() == before
