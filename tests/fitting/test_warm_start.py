"""Warm start: what a run gives to a model of other items, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.writer import save_dataset
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.warm_start import WarmStart
from posrec.models.base import SessionModel
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress
from posrec.runs.run import Run, load_run
from posrec.testing import known_settings, write_dataset
from tests.helpers import RecordingProgress, chain_shop, command, fitted, raw, slowly

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
NEW_TRAIN = [
    *(
        [
            ["i1", "i2", "i3", "x", "i4"],
            ["i5", "i6", "i7", "i8", "i9"],
            ["i0", "i1", "i2"],
        ]
        * 8
    ),
    ["x", "y"],
]

LATER = 1000  # when the first session of the newer datasets begins, after all of those that runs are trained on


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
    return write_dataset(
        tmp_path_factory.mktemp("newer") / "data",
        NEW_TRAIN,
        [["i1", "i2", "i3"], ["x", "i4", "z"]],
        LATER,
    )


def started(
    run: Run, data: PreparedDataset, model: str = "posrec-plus"
) -> SessionModel:
    """A new model of the run's settings after the warm start, before any step."""
    spec = MODELS[model]
    torch.manual_seed(1)
    network = spec.build(data.train_items, run.model.config)
    assert isinstance(network, SessionModel)
    network.count(data.train.items, data.train.offsets)
    WarmStart(run, data.vocabulary, data.train_items).set_weights(network, data.train)
    return network.eval()


def vector(model: SessionModel, vocabulary: Vocabulary, item: str) -> torch.Tensor:
    return model.similarity_vectors()[vocabulary.index(item) - 1]


@pytest.mark.parametrize("model", ["posrec", "posrec-plus"])
def test_known_items_keep_their_vectors_and_the_network_its_weights(
    model: str, trained: Path, trained_plus: Path, newer: PreparedDataset
) -> None:
    run = load_run(trained if model == "posrec" else trained_plus)
    network = started(run, newer, model)
    for item in ("i0", "i5", "i9"):
        assert torch.allclose(
            vector(network, newer.vocabulary, item),
            vector(run.model, run.vocabulary, item),
            atol=1e-5,
        )
    before = run.model.state_dict()
    now = network.state_dict()
    copied = [
        name for name in now if "embedding" not in name and "trends.now" not in name
    ]
    assert len(copied) > 10
    assert all(torch.equal(before[name], now[name]) for name in copied)


def test_a_new_item_starts_from_its_neighbours(
    trained: Path, newer: PreparedDataset
) -> None:
    run = load_run(trained)
    network = started(run, newer, "posrec")

    def old(item: str) -> torch.Tensor:
        return vector(run.model, run.vocabulary, item)

    # x is 8 times next to i3, 8 times next to i4 and 8 times two clicks from i2, which counts half.
    expected = (8 * old("i3") + 8 * old("i4") + 4 * old("i2")) / 20
    assert torch.allclose(vector(network, newer.vocabulary, "x"), expected, atol=1e-6)
    assert torch.allclose(
        vector(network, newer.vocabulary, "y"), expected, atol=1e-6
    )  # its only neighbour is x


def test_a_new_item_starts_from_items_with_its_attributes(
    trained: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    run = load_run(trained)
    ids = newer.vocabulary.ids
    kinds = {"x": "tents", "i7": "tents", "i8": "tents", "i9": "mats", "i0": "mats"}
    arrays = {
        f"{part}_{name}": getattr(getattr(newer, part), name).numpy()
        for part in ("train", "test")
        for name in ("items", "offsets", "times")
    }
    vocabulary = Vocabulary(ids, {"category": [kinds.get(item) for item in ids]})
    save_dataset(tmp_path / "data", arrays, vocabulary, {"schema": 1, "steps": []})
    network = started(run, posrec.load(tmp_path / "data"), "posrec")

    def old(item: str) -> torch.Tensor:
        return vector(run.model, run.vocabulary, item)

    expected = (
        8 * old("i3") + 8 * old("i4") + 4 * old("i2") + (old("i7") + old("i8")) / 2
    ) / 21
    assert torch.allclose(vector(network, vocabulary, "x"), expected, atol=1e-6)


def test_smoothing_is_undone_whatever_its_weight(
    trained_plus: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    for smoothing in (0.0, 0.25, 0.9):
        run = fit(
            newer,
            "posrec-plus",
            tmp_path / f"{smoothing}",
            **QUICK,
            smoothing=smoothing,
            protocol="paper",
        )
        assert torch.allclose(
            started(run, newer).similarity_vectors(),
            run.model.similarity_vectors(),
            atol=1e-4,  # type: ignore[operator]
        )


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
    recorded = before.config["training"]
    training = run.config["training"]
    assert (training["protocol"], training["epochs"], training["warmup"]) == (
        "paper",
        6,
        0,
    )
    assert (training["schedule"], training["learning_rate"]) == (
        "cosine",
        pytest.approx(0.1 * recorded["learning_rate"]),
    )
    again = fit(newer, None, tmp_path / "again", start_from=run.path)
    assert (
        again.config["training"] == run.config["training"]
    )  # the third night is as long as the second


def test_a_warm_start_is_ahead_of_as_many_steps_from_scratch(
    trained_plus: Path, tmp_path: Path
) -> None:
    data = chain_shop(
        tmp_path, seed=5, items=32, prefix="i"
    )  # items i30 and i31 are new
    quick = {**QUICK, "epochs": 1, "learning_rate": 0.005}
    warm = fitted(
        data,
        None,
        tmp_path / "warm",
        {"epochs": 1, "learning_rate": 0.005},
        start_from=trained_plus,
    )[1]
    settings = known_settings(MODELS["posrec-plus"], {**quick, "protocol": "paper"})
    scratch = fitted(data, "posrec-plus", tmp_path / "scratch", settings)[1]
    assert warm.metrics["mrr@20"] > scratch.metrics["mrr@20"] + 0.1


def test_the_command_says_what_it_starts_from_and_settings_override(
    trained: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    options = ("--epochs", 5, "--device", "cpu", "--no-export")
    done = command(
        "train", newer.path, "--from", trained, "--out", tmp_path / "run", *options
    )
    assert done.code == 0, done.err
    # i0 to i9 are known; x and y are new.
    assert (
        f"starting from {trained}: 10 items are known, 2 are new, 20 are no longer there"
        in done.err.replace("\n", " ")
    )
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["training"]["epochs"], config["d"], config["model"]) == (
        5,
        16,
        "posrec",
    )


@pytest.mark.parametrize("model", ["posrec", "posrec-plus"])
def test_items_that_have_gone_are_kept_on_request(
    model: str,
    trained: Path,
    trained_plus: Path,
    newer: PreparedDataset,
    tmp_path: Path,
) -> None:
    """`newer` has i0 to i9, x and y for training, and z in its test part alone; the run also knows
    i10 to i29."""
    start = trained if model == "posrec" else trained_plus
    out = tmp_path / "run"
    done = command("train", newer.path, "--keep-items", "--out", out)
    assert (done.code, "--keep-items needs --from" in done.err, out.exists()) == (
        2,
        True,
        False,
    )
    done = command(
        "train",
        newer.path,
        "--from",
        start,
        "--keep-items",
        "--out",
        out,
        "--device",
        "cpu",
        "--no-export",
    )
    assert done.code == 0, done.err
    assert "keeping 20 items of the run that the dataset does not have" in done.err
    run = load_run(out)
    before = load_run(start)
    assert run.vocabulary.ids[:12] == newer.vocabulary.ids[:12]
    assert sorted(run.vocabulary.ids[12:32]) == sorted(
        f"i{number}" for number in range(10, 30)
    )
    assert run.vocabulary.ids[32:] == ["z"]
    assert run.model.items == 32
    assert run.popularity is not None
    assert run.popularity[12:].tolist() == [0] * 20
    recommender = posrec.Recommender.load(out, "cpu")
    (found,) = [
        one.score for one in recommender.recommend(["i19"], k=32) if one.item == "i20"
    ]  # known, and an input
    assert found == found
    now, then = (vector(one.model, one.vocabulary, "i20") for one in (run, before))
    assert torch.nn.functional.cosine_similarity(now, then, 0) > 0.5
    # Numbers differ from those of the dataset, so that it has to be evaluated by ids, with the same
    # result.
    with pytest.raises(InputError, match="--match-ids"):
        evaluate_run(run, newer, "cpu", SilentProgress())
    matched = evaluate_run(run, newer, "cpu", SilentProgress(), match_ids=True)
    assert matched.metrics["mrr@20"] == pytest.approx(
        json.loads((out / "metrics.json").read_text())["mrr@20"]
    )


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
    second = posrec.fit(newer, device="cpu", progress=progress, start_from=first.run)
    assert second.run.config["model"] == "posrec"
    assert any(
        "12 items are known, 0 are new" in message for message in progress.messages
    )


def test_what_can_not_be_a_start_is_refused(
    trained: Path, counted: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    other = write_dataset(tmp_path / "other", [["a", "b", "c"]] * 10, [["a", "b"]])
    for data, model, start, settings, message in (
        (
            newer,
            "posrec-plus",
            trained,
            {},
            "holds posrec, not posrec-plus; start from a run of the same model",
        ),
        (
            newer,
            None,
            trained,
            {"d": 32},
            "would have the shape .*; use the run's own settings",
        ),
        (
            newer,
            None,
            trained,
            {"max_length": 7},
            r"would have the shape \(7, 16\), and the run has \(10, 16\)",
        ),
        (newer, None, counted, {}, "pop counts its sessions anew"),
        (other, None, trained, {}, "knows none of the items of the dataset"),
        (newer, None, tmp_path, {}, "is not a run folder"),
    ):
        with pytest.raises(InputError, match=message):
            fit(data, model, tmp_path / "run", **settings, start_from=start)
        assert not (tmp_path / "run").exists()


def test_an_epoch_that_is_chosen_on_sessions_which_the_run_knows_is_warned_of(
    trained: Path, small: PreparedDataset, tmp_path: Path
) -> None:
    progress = RecordingProgress()
    fitted(
        small,
        None,
        tmp_path / "run",
        {"protocol": "early-stop", "epochs": 1},
        start_from=trained,
        progress=progress,
    )
    (warning,) = [text for text in progress.messages if text.startswith("warning")]
    seen = f"{small.validation.sessions:,} of {small.validation.sessions:,} validation sessions"
    assert seen in warning
    assert "use protocol=paper" in warning


def test_without_times_no_session_is_taken_for_new(
    trained: Path, newer: PreparedDataset, tmp_path: Path
) -> None:
    progress = RecordingProgress()
    timeless = replace(newer, manifest={**newer.manifest, "format": "sessions"})
    fitted(
        timeless,
        None,
        tmp_path / "run",
        {"epochs": 1},
        start_from=trained,
        progress=progress,
    )
    assert any("an epoch has all sessions" in text for text in progress.messages)
    assert not any("samples are new" in text for text in progress.messages)


def test_a_run_is_evaluated_on_other_items_by_their_ids(
    trained: Path, small: PreparedDataset, tmp_path: Path
) -> None:
    run = load_run(trained)
    ids = run.vocabulary.ids
    same = write_dataset(
        tmp_path / "same", [ids[::-1]], raw(small.test, run.vocabulary), LATER
    )  # the same sessions, other numbers
    before = (run.path / "metrics.json").read_text()
    with pytest.raises(InputError, match="--match-ids"):
        evaluate_run(run, same, "cpu", SilentProgress())
    matched = evaluate_run(run, same, "cpu", SilentProgress(), match_ids=True)
    assert matched.metrics["recall@20"] == pytest.approx(
        json.loads(before)["recall@20"]
    )
    strange = write_dataset(
        tmp_path / "strange", [["new", *ids]], [["i1", "new"]], LATER
    )
    assert (
        evaluate_run(run, strange, "cpu", SilentProgress(), match_ids=True).metrics[
            "recall@20"
        ]
        == 0
    )  # a miss
    assert (run.path / "metrics.json").read_text() == before
    done = command(
        "evaluate", trained, same.path, "--match-ids", "--json", "--device", "cpu"
    )
    assert json.loads(done.out)["recall@20"] == pytest.approx(
        json.loads(before)["recall@20"]
    )
