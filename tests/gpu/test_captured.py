"""Captured and compiled steps do what eager steps do, for every trained model. Skipped without a
GPU."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posrec.data.dataset import SessionDataset, collate
from posrec.evaluation.evaluate import compile_ahead
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress
from posrec.training.batches import Batches, PassBatches, SampleBatches
from posrec.training.loop import evaluate_on
from posrec.training.losses import choose_loss
from posrec.training.optimizers import make_optimizer, set_learning_rate
from posrec.training.settings import RANKING_LOSSES, Settings
from posrec.training.softmax import Loss, softmax_loss
from posrec.training.step import STEPS_AT_ONCE, CapturedStepper, Stepper

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ITEMS = 30
BATCH = 20
LONGEST = 6
# At 0.01, a change of the tenth bit grows to 1 % of GC-SAN's and SASRec's loss within 30 steps.
RATE = 0.003
TRAINED = [name for name, spec in MODELS.items() if spec.is_trained]


def sessions() -> SessionDataset:
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 9, (200,), generator=random)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    items = torch.randint(
        1, ITEMS + 1, (int(offsets[-1]),), generator=random, dtype=torch.int32
    )
    return SessionDataset(items, offsets, torch.arange(200))


def stepper(
    kind: type[Stepper], name: str, loss: Loss, optimizer: str = "adam"
) -> Stepper:
    torch.manual_seed(0)
    spec = MODELS[name]
    without = {
        field.name: 0.0 for field in fields(spec.config) if "dropout" in field.name
    }
    model: Any = spec.build(ITEMS, replace(spec.config(), **without))
    model.count(sessions().items, sessions().offsets)
    model.cuda().train()
    settings = Settings(optimizer=optimizer, learning_rate=RATE)
    steps = make_optimizer(model, settings, torch.device("cuda"))
    longest = min(LONGEST, model.config.max_length)
    samples = sessions().to("cuda")
    weights = torch.ones(len(samples))
    if model.is_causal:
        batches: Batches = PassBatches(samples, weights, BATCH, longest, longest // 2)
    else:
        batches = SampleBatches(samples, weights, BATCH, longest, model.build_graph)
    return kind(model, steps, batches, loss, longest)


@pytest.mark.parametrize("precision", ["high", "highest"])
@pytest.mark.parametrize("name", TRAINED)
def test_captured_steps_are_the_eager_ones(name: str, precision: str) -> None:
    """With the kernel of the softmax, whose products are rounded to ten bits, and without."""
    torch.set_float32_matmul_precision(precision)
    loss = softmax_loss(ITEMS)
    eager = stepper(Stepper, name, loss)
    captured = stepper(CapturedStepper, name, loss)
    compare(eager, captured, tolerance=2e-2 if precision == "high" else 5e-3)


def test_captured_steps_of_adagrad_are_the_eager_ones() -> None:
    """Also at a learning rate that was set after the capture."""
    torch.set_float32_matmul_precision("highest")
    loss = softmax_loss(ITEMS)
    eager = stepper(Stepper, "gru4rec", loss, "adagrad")
    captured = stepper(CapturedStepper, "gru4rec", loss, "adagrad")
    compare(eager, captured, tolerance=5e-3)
    set_learning_rate(captured.optimizer, 0.0)
    before = weights_of(captured)
    captured.run(torch.arange(BATCH, device="cuda")[None])
    assert torch.equal(weights_of(captured), before)


@pytest.mark.parametrize("name", TRAINED)
def test_an_evaluation_between_captured_steps_leaves_the_weights_where_they_are(
    name: str,
) -> None:
    """Captured steps change the memory in which the weights were when they were captured. Kernels
    that are compiled ahead leave in memory what is there: here, as after other trainings, NaN."""
    model = stepper(CapturedStepper, name, softmax_loss(ITEMS)).model
    data: Any = SimpleNamespace(train=sessions())
    addresses = [weights.data_ptr() for weights in model.parameters()]
    device = torch.device("cuda")
    filled = [torch.full((2**n,), torch.nan, device=device) for n in range(8, 24)]
    del filled
    compile_ahead(model, sessions(), device)
    evaluate_on(model, data, sessions(), device, SilentProgress())
    assert [weights.data_ptr() for weights in model.parameters()] == addresses
    assert model.training


def compare(eager: Stepper, captured: Stepper, tolerance: float) -> None:
    assert isinstance(captured, CapturedStepper)
    first = weights_of(eager)
    captured.capture(128, BATCH)
    random = torch.Generator().manual_seed(1)
    units = torch.randint(
        len(captured.batches.samples_of_units),
        (4 * (STEPS_AT_ONCE + 1) * BATCH,),
        generator=random,
    )
    batches = captured.batches.arrange(units, random)[: STEPS_AT_ONCE + 1].cuda()
    batches[-1, -5:] = -1
    # On a GPU an eager step does not wait for the number of clicks either.
    eager.capacity = 128
    for some in (batches[:-1], batches[-1:]):
        expected = eager.run(some)
        assert torch.allclose(captured.run(some), expected, rtol=tolerance)
    change = weights_of(eager) - first
    captured_change = weights_of(captured) - first
    # Rounding products to ten bits makes them differ by up to 0.056 (SASRec, on an H200).
    assert (change - captured_change).norm() < 0.15 * change.norm()


def weights_of(stepper: Stepper) -> torch.Tensor:
    """All weights in one vector."""
    return torch.cat(
        [parameter.detach().flatten() for parameter in stepper.model.parameters()]
    )


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_each_replay_draws_other_negatives(name: str) -> None:
    """The batch and the weights stay the same: losses differ by the drawn negatives alone."""
    loss = choose_loss(Settings(loss=name, negatives=8), ITEMS, sessions().items.cuda())
    captured = stepper(CapturedStepper, "gru4rec", loss)
    assert isinstance(captured, CapturedStepper)
    captured.capture(128, BATCH)
    captured.optimizer.param_groups[0]["lr"].zero_()
    batch = torch.arange(BATCH, device="cuda")[None]
    first = captured.run(batch)
    second = captured.run(batch)
    assert first.isfinite().all()
    assert not torch.equal(first, second)


def test_batches_and_graphs_are_the_same_on_both_devices() -> None:
    data = sessions()
    ids = torch.arange(300)
    here = collate(data, ids, LONGEST)
    there = collate(data.to("cuda"), ids.cuda(), LONGEST)
    assert torch.equal(here.items, there.items.cpu())
    assert torch.equal(here.lengths, there.lengths.cpu())
    theirs = vars(there.build_graph())
    for name, value in vars(here.build_graph()).items():
        if theirs[name] is None:
            assert value is None, name
        else:
            assert torch.equal(value, theirs[name].cpu()), name
