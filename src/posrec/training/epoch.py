"""One epoch of training: the order of its samples, its steps, and the precision of products."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset
from posrec.device import has_amx
from posrec.errors import InputError
from posrec.models.base import SessionModel
from posrec.training.batches import Batches, PassBatches, SampleBatches
from posrec.training.losses import choose_loss
from posrec.training.settings import RANKING_LOSSES, Settings
from posrec.training.softmax import rounded_table_products
from posrec.training.step import CapturedStepper, Stepper

READ_SECONDS = 0.5  # how often losses are copied from a GPU
MANY_ITEMS = 10_000  # with fewer, rounding saves little of a step


@dataclass(frozen=True)
class EpochOrder:
    """The batches of an epoch in random order."""

    batches: Tensor  # [steps, width] (`batches.py`)
    samples: int

    @property
    def steps(self) -> int:
        return len(self.batches)


class EpochRunner:
    """Shuffles the samples of an epoch and runs its steps, on the device of the samples: captured
    on a GPU, eager on a CPU.

    The loss is over items 1..items, with `weights [samples]`. If only some samples are new, `new
    [samples]`, an epoch has all of them and a few of the others, drawn at random."""

    captures = True  # whether steps on a GPU are captured

    def __init__(
        self,
        model: SessionModel,
        optimizer: torch.optim.Optimizer,
        samples: SessionDataset,
        settings: Settings,
        items: int,
        weights: Tensor | None = None,
        new: Tensor | None = None,
    ) -> None:
        self.settings = settings
        self.on_gpu = samples.items.is_cuda
        if model.has_own_items and settings.loss in RANKING_LOSSES:
            raise InputError(
                f"loss={settings.loss}: this model needs a softmax; choose auto, full, chunked or "
                "sampled"
            )
        clicks = samples.items[samples.offsets[0] : samples.offsets[-1]]
        loss = choose_loss(settings, items, clicks)
        if weights is None:
            weights = torch.ones(len(samples))
        size = settings.batch_size
        max_length = model.config.max_length
        longest = min(max_length, max(1, samples.longest - 1))
        self.batches: Batches
        if model.is_causal:
            self.batches = PassBatches(samples, weights, size, max_length, model.stride)
        else:
            self.batches = SampleBatches(
                samples, weights, size, longest, model.build_graph
            )
        has_both = new is not None and bool(new.any()) and not new.all()
        self.new = new if has_both else None
        stepper = CapturedStepper if self.on_gpu and self.captures else Stepper
        bf16 = settings.precision == "bf16" and self.on_gpu
        self.stepper = stepper(model, optimizer, self.batches, loss, longest, bf16)

    def shuffle(self, epoch: int) -> EpochOrder:
        """The order depends on seed and epoch alone, so a resumed run has the same."""
        random = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
        counts = self.batches.samples_of_units
        units = torch.randperm(len(counts), generator=random)
        if self.new is not None:
            is_new = self.new[self.batches.first_sample][units]
            others = torch.where(is_new, 0, counts[units]).cumsum(0)
            units = units[is_new | (others <= self.replayed)]
        batches = self.batches.arrange(units, random)
        batches = batches.to(self.batches.samples.items.device)
        self.stepper.prepare(batches)
        return EpochOrder(batches, int(counts[units].sum()))

    @property
    def replayed(self) -> int:
        """How many samples that are not new are in an epoch, at most."""
        if self.new is None:
            return 0
        count = int(self.new.sum())
        return min(len(self.new) - count, int(self.settings.replay * count))

    def run(self, order: EpochOrder, step: int) -> Tensor:
        """Run one or more steps, beginning with number `step`; returns the loss of each."""
        at_once = self.stepper.steps_at_once
        count = at_once if step + at_once <= order.steps else 1
        return self.stepper.run(order.batches[step : step + count])

    def is_time_to_read(self, step: int, seconds: float) -> bool:
        """Whether to read the losses after this step, `seconds` after the last time: copying them
        from a GPU makes the CPU wait."""
        return not self.on_gpu or seconds >= READ_SECONDS


def sample_weights(
    samples: SessionDataset,
    recency: float,
    target_weights: npt.NDArray[np.float32] | None = None,
) -> Tensor:
    """The weight of each sample in the loss, [samples], in order of time: exp(-recency * age), with
    the age 1 of the oldest, times the weight of its target click.

    >>> two = SessionDataset(torch.tensor([1, 2, 3]), torch.tensor([0, 3]), torch.tensor([0]))
    >>> sample_weights(two, 1.0)
    tensor([0.6065, 1.0000])
    """
    count = len(samples)
    weights = torch.exp(-recency * (count - 1 - torch.arange(count)) / count)
    if target_weights is None:
        return weights
    _, target = samples.locate(torch.arange(count))
    return weights * torch.from_numpy(target_weights[target.numpy()])


@contextmanager
def matmul_precision(
    settings: Settings, device: torch.device, items: int
) -> Iterator[None]:
    """Compute products in TF32 on a GPU, unless `precision=fp32` is set. On a CPU the products of
    the softmax are rounded with `bf16`, and with `auto` if the CPU has AMX and the catalogue is
    large: the same command gives the same weights, so no measurement decides."""
    before = torch.get_float32_matmul_precision()
    reduced = device.type == "cuda" and settings.precision != "fp32"
    torch.set_float32_matmul_precision("high" if reduced else "highest")
    pays = settings.precision == "auto" and items >= MANY_ITEMS and has_amx()
    rounds = device.type == "cpu" and (pays or settings.precision == "bf16")
    try:
        with rounded_table_products(rounds):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
