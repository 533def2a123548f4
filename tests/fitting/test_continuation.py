"""What a run leaves for a later training: Adam's second moments, and which sessions it has seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import posrec
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.errors import InputError
from posrec.fitting.warm_start import WarmStart
from posrec.io import CONTINUATION
from posrec.models.base import SessionModel
from posrec.models.registry import MODELS, ModelSpec
from posrec.nn.batch import SessionBatch
from posrec.nn.items.item_table import ItemTable
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from posrec.testing import write_dataset
from posrec.training.optimizers import Adam, make_optimizer
from posrec.training.settings import Settings
from posrec.training.start import STEPS_BEFORE, Continuation, set_moments
from tests.helpers import RecordingProgress, fitted, raw

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tomorrow(
    small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> PreparedDataset:
    """The sessions of `small`, and ten later ones with the new item x."""
    train = raw(small.train, small.vocabulary) + [["i1", "i2", "x", "i3"]] * 10
    folder = tmp_path_factory.mktemp("tomorrow") / "data"
    return write_dataset(folder, train, raw(small.test, small.vocabulary))


def continuation_of(run: Run) -> Continuation:
    assert run.continuation is not None
    return Continuation.of_file(run.path / CONTINUATION, *run.continuation)


def test_second_moments_are_saved_as_means_of_rows() -> None:
    weights = {
        "table": torch.ones(2, 3),
        "bias": torch.ones(2),
        "scale": torch.ones(()),
    }
    model: Any = nn.ParameterDict(weights)
    optimizer = Adam(model.parameters())
    squares = {"table": [[1.0, 2, 3], [0, 0, 6]], "bias": [4.0, 5], "scale": 6.0}
    for name, values in squares.items():
        optimizer.state[model[name]]["exp_avg_sq"] = torch.tensor(values)
    saved = Continuation.of_training(model, optimizer, trained_until=7)
    moments = {name: rows.tolist() for name, rows in saved.moments.items()}
    assert moments == {"table": [2, 2], "bias": [4, 5], "scale": 6}
    assert saved.trained_until == 7
    other = Adam(model.parameters())
    set_moments(model, other, saved.moments)
    expected = {"table": [[2, 2, 2], [2, 2, 2]], "bias": [4, 5], "scale": 6}
    for name, values in expected.items():
        assert other.state[model[name]]["exp_avg_sq"].tolist() == values
    table = model["table"]
    assert not other.state[table]["exp_avg"].any()
    assert 1 - 0.999**STEPS_BEFORE > 0.99  # so the moments are hardly corrected
    table.grad = torch.full((2, 3), 2.0)
    other.step()  # m = 0.1 g and v = 0.999 * 2 + 0.001 * 4, up to the correction
    step = 0.001 * 0.2 / torch.tensor(0.999 * 2 + 0.001 * 4).sqrt()
    assert torch.allclose(1 - table, step.expand(2, 3), rtol=0.01)


def test_a_run_has_them_and_a_copy_does_too(
    trained: Path, small: PreparedDataset, tmp_path: Path
) -> None:
    run = load_run(trained)
    saved = continuation_of(run)
    moments = saved.moments["embedding.weight"]
    assert saved.trained_until == int(small.train.times.max())
    assert len(moments) == len(run.model.state_dict()["embedding.weight"])
    assert (moments[: small.train_items] > 0).all()
    posrec.Recommender(run).save(tmp_path / "copy")
    copied = continuation_of(load_run(tmp_path / "copy"))
    assert torch.equal(copied.moments["embedding.weight"], moments)


def test_validation_sessions_are_not_seen_under_early_stopping(
    small: PreparedDataset, tmp_path: Path
) -> None:
    settings = {"d": 8, "epochs": 1, "batch_size": 64, "protocol": "early-stop"}
    run, _ = fitted(small, "stamp", tmp_path / "run", settings)
    trained_until = continuation_of(run).trained_until
    assert trained_until == int(small.fitting.times[-1]) < int(small.train.times[-1])


def test_a_file_without_its_time_is_refused(
    trained: Path, tomorrow: PreparedDataset, tmp_path: Path
) -> None:
    run = replace(load_run(trained), continuation=({}, {}))
    with pytest.raises(InputError, match=r"continuation.safetensors .* is damaged"):
        fitted(tomorrow, None, tmp_path / "run", {}, start_from=run)
    assert not (tmp_path / "run").exists()


def test_moments_follow_their_items(trained: Path, tomorrow: PreparedDataset) -> None:
    run = load_run(trained)
    assert run.continuation is not None
    tensors, about = run.continuation
    rows = torch.arange(1.0, 33)  # 30 items and two rows more
    moments = {**tensors, "embedding.weight": rows}
    run = replace(run, continuation=(moments, about))
    model = MODELS["posrec"].build(tomorrow.train_items, run.model.config)
    assert isinstance(model, SessionModel)
    optimizer = make_optimizer(model, Settings(), CPU)
    start = WarmStart(run, tomorrow.vocabulary, tomorrow.train_items)
    start.set_moments(model, optimizer)
    weight = model.embedding.weight
    moved = optimizer.state[weight]["exp_avg_sq"][:, 0]
    for item in ("i0", "i17", "i29"):
        assert moved[tomorrow.vocabulary.index(item) - 1] == run.vocabulary.index(item)
    assert moved[tomorrow.vocabulary.index("x") - 1] == 16.5  # the mean of 1 .. 32


class Clicked(SessionModel):
    """A model that counts the clicks of each item."""

    def __init__(self, items: int, config: Any) -> None:
        super().__init__(items, config)
        self.embedding = ItemTable(items, config.d)
        self.register_buffer("clicks", torch.zeros(items))

    def count(self, items: torch.Tensor, offsets: torch.Tensor) -> None:
        clicked = items[offsets[0] : offsets[-1]]
        clicks = torch.bincount(clicked, minlength=self.items + 1)[1:]
        self.clicks.copy_(clicks)

    def session_vectors(self, batch: SessionBatch) -> torch.Tensor:
        return self.embedding.look_up(batch.items).sum(1)


def test_what_a_model_has_counted_is_not_replaced_by_the_counts_of_the_run(
    tmp_path: Path,
) -> None:
    """Both datasets have three items, in another order."""
    spec = ModelSpec(Clicked, MODELS["bprmf"].config, "counts")
    settings = {"d": 4, "epochs": 1, "max_length": 5}
    first = write_dataset(tmp_path / "first", [list("abac")] * 3, [["a", "b"]])
    second = write_dataset(tmp_path / "second", [list("cbcca")] * 4, [["a", "b"]])
    before, _ = fitted(first, spec, tmp_path / "before", settings)
    after, _ = fitted(second, spec, tmp_path / "after", {}, start_from=before)
    assert before.model.state_dict()["clicks"].tolist() == [6, 3, 3]
    assert after.model.state_dict()["clicks"].tolist() == [12, 4, 4]


def test_samples_after_a_time() -> None:
    """Sessions of 3, 2 and 4 clicks; the third began before the second, as in a log in order of the
    last clicks."""
    items = torch.arange(9)
    offsets = torch.tensor([0, 3, 5, 9])
    times = torch.tensor([10, 30, 20])
    every = SessionDataset(items, offsets, times)
    assert every.begun_after(9).int().tolist() == [1, 1, 1, 1, 1, 1]
    assert every.begun_after(10).int().tolist() == [0, 0, 1, 1, 1, 1]
    assert every.begun_after(20).int().tolist() == [0, 0, 1, 0, 0, 0]
    some = SessionDataset(items, offsets, times, torch.tensor([2, 4, 6]))
    assert some.begun_after(20).int().tolist() == [0, 1, 0]


def test_a_run_is_trained_until_its_latest_session_began(
    small: PreparedDataset, tmp_path: Path
) -> None:
    times = small.train.times.clone()
    times[-1] = 0  # it began first and ended last
    data = replace(small, train=replace(small.train, times=times))
    run, _ = fitted(data, "stamp", tmp_path / "run", {"d": 8, "epochs": 1})
    trained_until = continuation_of(run).trained_until
    assert trained_until == int(times.max())
    assert not data.train.begun_after(trained_until).any()


def test_a_night_trains_on_what_is_new(
    trained: Path, tomorrow: PreparedDataset, tmp_path: Path
) -> None:
    """Ten new sessions of four clicks are 30 samples; with one other for each, an epoch has two
    batches of 32."""
    progress = RecordingProgress()
    options: dict[str, Any] = {"start_from": trained, "progress": progress}
    run, _ = fitted(tomorrow, None, tmp_path / "run", **options)
    total = len(tomorrow.train)
    message = f"30 of {total:,} samples are new; an epoch has them and 30 others"
    assert message in progress.messages
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    epochs = [line for line in log if '"loss"' in line]
    assert len(epochs) == 8
    assert all('"steps": 2' in line for line in epochs)
    # Then nothing is new, and all sessions are used.
    progress.messages.clear()
    options["start_from"] = run
    fitted(tomorrow, None, tmp_path / "again", {"epochs": 1}, **options)
    assert not any("samples are new" in message for message in progress.messages)
    steps = -(-total // 32)
    assert f'"steps": {steps}' in (tmp_path / "again" / "log.jsonl").read_text()


def test_with_its_moments_a_run_hardly_moves_items_that_are_not_clicked(
    trained: Path, tomorrow: PreparedDataset, tmp_path: Path
) -> None:
    run = load_run(trained)
    assert run.continuation is not None
    without_moments = replace(run, continuation=({}, run.continuation[1]))
    settings = {"replay": 0, "epochs": 3}
    moved = []
    for number, start in enumerate((run, without_moments)):
        out = tmp_path / str(number)
        after, _ = fitted(tomorrow, None, out, settings, start_from=start)
        items = [f"i{item}" for item in range(8, 30)]
        steps = [vector(after, item) - vector(run, item) for item in items]
        moved.append(torch.stack(steps).abs().mean())
    assert moved[0] < 0.5 * moved[1]


def vector(run: Run, item: str) -> torch.Tensor:
    return run.model.state_dict()["embedding.weight"][run.vocabulary.index(item) - 1]
