"""`check_model`: the contract of all models, as checks for a model of your own.

    def test_recency() -> None:
        check_model(RECENCY)

Each check is a function of a ModelSpec that raises an AssertionError.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from posrec.data.dataset import PreparedDataset
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.fit import fit_run
from posrec.io import WEIGHTS, load_tensors
from posrec.models.base import Model, SessionModel
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch
from posrec.nn.items.item_table import ROW_MULTIPLE
from posrec.progress import SilentProgress
from posrec.runs.run import load_run
from posrec.testing.datasets import small_dataset, write_dataset
from posrec.training.losses import losses_of
from posrec.training.settings import Settings
from posrec.training.softmax import softmax_loss

__all__ = ["check_model", "small_dataset", "write_dataset"]

ITEMS = 37  # a prime, so that no other side of a tensor has as many
SMALL = {"d": 16, "hidden": 16}  # for models that have such settings
TRAINING = {
    **SMALL,
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 0.01,
    "dropout": 0.1,
    "protocol": "paper",
}
BATCH = [[3], [5, 5, 5], [*range(1, 10)], [7, 8, 7, 8], [37, 1], [2, 30, 2, 11, 30]]
Check = Callable[[ModelSpec], None]
CHECKS: list[Check] = []


def check_model(spec: ModelSpec) -> None:
    """Check that a model fulfils the contract; takes some seconds on a CPU.

    Args:
        spec: the model, as for `posrec train --model FILE.py:SPEC`.

    Raises:
        AssertionError: with the name of the first check that failed and the reason.

    >>> from posrec.models.registry import MODELS
    >>> check_model(MODELS["pop"])
    """
    for function in CHECKS:
        try:
            function(spec)
        except AssertionError as error:
            name = f"{spec.model.__name__}: {function.__name__}"
            raise AssertionError(f"{name}: {error}") from error


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


@check
def scores_have_a_column_for_each_item(spec: ModelSpec) -> None:
    model = build(spec)
    if model.items != ITEMS:
        fail("the model must keep the number of items as `items`")
    if model.config.max_length < 1:
        fail("the config must have max_length, at least 1")
    shape = tuple(scores(model, BATCH).shape)
    if shape != (len(BATCH), ITEMS):
        fail(f"scores have the shape {shape}, not [B, items]")


@check
def scores_are_products_of_session_and_item_vectors(spec: ModelSpec) -> None:
    """Losses, searches and the ONNX export rely on it."""
    model = build(spec)
    batch = SessionBatch.of(BATCH)
    if not isinstance(model, SessionModel):
        return
    with torch.no_grad():
        of_sessions = model.session_vectors(batch)
        of_items = model.item_vectors()
        for_training, table = model.vectors(batch)
        if len(of_items) != ITEMS:
            fail(f"item_vectors() has {len(of_items)} rows for {ITEMS} items")
        if of_sessions.shape != (len(BATCH), of_items.shape[1]):
            fail("session and item vectors differ in width")
        if not model.has_own_items:
            product = of_sessions @ of_items.T
            if not alike(model.scores(batch), product):
                fail("scores(batch) is not the product of the vectors")
        if not alike(for_training, of_sessions):
            fail("vectors(batch) and session_vectors(batch) differ")
        if not alike(table[:ITEMS], of_items):
            fail("vectors(batch) and item_vectors() differ")


@check
def own_items_are_the_only_other_term(spec: ModelSpec) -> None:
    """Scores are then log probabilities, and all other items have the order of the products."""
    model = build(spec)
    batch = SessionBatch.of(BATCH)
    if not isinstance(model, SessionModel):
        return
    with torch.no_grad():
        sessions, table, own = model.batch_vectors(batch)
        if model.has_own_items != (own is not None):
            fail("has_own_items and batch_vectors(batch) contradict each other")
        if own is None:
            return
        products = sessions @ table[:ITEMS].T
        log_probabilities = model.scores(batch)
        if not alike(log_probabilities.logsumexp(1), torch.zeros(len(BATCH))):
            fail("the probabilities of a session do not add up to 1")
        for row, session in enumerate(BATCH):
            is_item = own.items[row] > 0
            items = own.items[row][is_item]
            if sorted(items.tolist()) != sorted(set(session)):
                fail(f"the own items of {session} are {items.tolist()}")
            others = [item - 1 for item in range(1, ITEMS + 1) if item not in session]
            gap = (log_probabilities - products)[row, others]
            if not alike(gap, gap[:1].expand_as(gap)):
                fail(f"items that are not in {session} have another order")


@check
def a_session_scores_alone_as_in_a_batch(spec: ModelSpec) -> None:
    model = build(spec)
    together = scores(model, BATCH)
    for row, session in enumerate(BATCH):
        if not alike(scores(model, [session])[0], together[row]):
            fail(f"{session} scores differently in a batch")


@check
def padding_changes_no_score(spec: ModelSpec) -> None:
    model = build(spec)
    batch = SessionBatch.of(BATCH)
    expected = scores_of(model, batch)
    padded = SessionBatch(pad(batch.items, (0, 7)), batch.lengths)
    if not alike(scores_of(model, padded), expected):
        fail("columns of padding changed a score")
    roomy = replace(batch, capacity=sum(map(len, BATCH)) + 30)
    if not alike(scores_of(model, roomy), expected):
        fail("a larger `capacity` changed a score")


@check
def the_numbering_of_items_does_not_matter(spec: ModelSpec) -> None:
    generator = torch.Generator().manual_seed(3)
    new_number = torch.randperm(ITEMS, generator=generator) + 1  # of item i + 1

    def renumbered(sessions: Sequence[Sequence[int]]) -> list[list[int]]:
        return [new_number[torch.tensor(session) - 1].tolist() for session in sessions]

    other = build(spec, renumbered(random_sessions()))
    if isinstance(other, SessionModel):
        sizes = (ITEMS, ITEMS + 1, -(-ITEMS // ROW_MULTIPLE) * ROW_MULTIPLE)
        for weight in other.parameters():
            if weight.dim() and len(weight) in sizes:
                weight.data[new_number - 1] = weight.data[:ITEMS].clone()
    scores_of_other = scores(other, renumbered(BATCH))
    expected = scores(build(spec), BATCH)
    if not alike(scores_of_other[:, new_number - 1], expected):
        fail("scores depend on how items are numbered")


@check
def unknown_items_are_all_alike(spec: ModelSpec) -> None:
    model = build(spec)
    for template in ([None], [1, None], [None, 2], [1, None, 2, None, 3]):
        never_seen = (ITEMS + 1, ITEMS + 20, 1_000_000)
        sessions = [[item or unknown for item in template] for unknown in never_seen]
        first, second, third = scores(model, sessions)
        if not first.isfinite().all():
            fail(f"an unknown item in {template} gives scores that are not finite")
        # Equal except for rounding: rows of a product may be summed in different orders.
        if not (alike(first, second) and alike(first, third)):
            fail("two unknown items score differently")


@check
def extreme_sessions_score_finitely(spec: ModelSpec) -> None:
    model = build(spec)
    for session in ([4], [4] * 200, [1 + click * 7 % ITEMS for click in range(200)]):
        if not scores(model, [session]).isfinite().all():
            fail(f"a session of {len(session)} clicks gives scores that are not finite")


@check
def scoring_changes_nothing(spec: ModelSpec) -> None:
    model = build(spec)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if not torch.equal(scores(model, BATCH), scores(model, BATCH)):
        fail("the same sessions score differently again")
    for name, tensor in model.state_dict().items():
        if not torch.equal(before[name], tensor):
            fail(f"scoring changed {name}")


@check
def a_step_can_be_captured(spec: ModelSpec) -> None:
    """On a GPU: the CPU reads no value, no shape depends on values, no tensor is on the CPU. A step
    that breaks a rule fails on the device `meta`, whose tensors have shapes but no values."""
    model = build(spec)
    if not isinstance(model, SessionModel):
        return
    model.train().to("meta")
    items = torch.zeros(5, 9, dtype=torch.long, device="meta")
    samples = items.flatten() if model.is_causal else items[:, 0]
    batch = SessionBatch(
        items,
        items[:, 0] + 1,
        samples + 1,
        capacity=45,
        when=samples.double(),
        every_click=model.is_causal,
    )
    encoded = model.batch_vectors(replace(batch, graph=model.build_graph(batch)))
    losses = losses_of(softmax_loss(ITEMS), encoded, samples + 1)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    if not (losses.device.type == encoded.table.device.type == "meta"):
        fail("a tensor left the model's device")


@check
def a_run_comes_back_from_disk_as_it_was(spec: ModelSpec) -> None:
    with tempfile.TemporaryDirectory() as folder:
        built: list[Model] = []

        class Remembered(spec.model):  # type: ignore[misc,name-defined]
            def __init__(self, items: int, config: Any) -> None:
                super().__init__(items, config)
                built.append(self)

        data = small_dataset(Path(folder) / "data")
        remembered = replace(spec, model=Remembered)
        run, evaluation = fit_small(remembered, data, Path(folder) / "run")
        opened = load_run(run.path, spec)
        trained = built[0].eval()
        sessions = [data.test.session(number).tolist() for number in range(10)]
        if not torch.equal(scores(opened.model, sessions), scores(trained, sessions)):
            fail("scores changed on disk")
        again = evaluate_run(opened, data, "cpu", SilentProgress())
        if not torch.equal(again.ranks, evaluation.ranks):
            fail("the test part is ranked differently")


@check
def a_seed_fixes_every_weight(spec: ModelSpec) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = small_dataset(Path(folder) / "data")
        weights = []
        for number, seed in enumerate((5, 5, 6)):
            run, _ = fit_small(spec, data, Path(folder) / f"run-{number}", seed=seed)
            weights.append(load_tensors(run.path / WEIGHTS)[0])
        if not same(weights[0], weights[1]):
            fail("two runs with the same seed have different weights")
        if same(weights[0], weights[2]) == spec.is_trained:
            fail("another seed must change the weights of a trained model alone")


def fail(problem: str) -> NoReturn:
    """Unlike `assert`, also under `python -O`."""
    raise AssertionError(problem)


def build(spec: ModelSpec, counted: Sequence[Sequence[int]] | None = None) -> Model:
    """A small model that can score: it has counted sessions, and its random weights are large
    enough for scores that can be compared.
    """
    torch.manual_seed(2)
    model = spec.build(ITEMS, replace(spec.config(), **known_settings(spec, SMALL)))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    sessions = counted or random_sessions()
    offsets = torch.tensor([0, *map(len, sessions)]).cumsum(0)
    items = [item for session in sessions for item in session]
    model.count(torch.tensor(items, dtype=torch.int32), offsets)
    return model.eval()


def known_settings(spec: ModelSpec, settings: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(spec.config)}
    if spec.is_trained:
        names |= {field.name for field in fields(Settings)}
    return {name: value for name, value in settings.items() if name in names}


def fit_small(spec: ModelSpec, data: PreparedDataset, out: Path, **changes: Any) -> Any:
    settings = known_settings(spec, {**TRAINING, **changes})
    return fit_run(
        data, spec, out, settings, "cpu", progress=SilentProgress(), export=False
    )


@torch.no_grad()
def scores_of(model: Model, batch: SessionBatch) -> Tensor:
    return model.scores(batch)


def scores(model: Model, sessions: Sequence[Sequence[int]]) -> Tensor:
    return scores_of(model, SessionBatch.of(sessions))


def alike(first: Tensor, second: Tensor) -> bool:
    """Equal except for rounding."""
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Equal to the bit."""
    if first.keys() != second.keys():
        return False
    return all(torch.equal(first[name], second[name]) for name in first)


def random_sessions() -> list[list[int]]:
    draw = random.Random(1)
    return [
        [draw.randint(1, ITEMS) for _ in range(draw.randint(1, 9))] for _ in range(60)
    ]
