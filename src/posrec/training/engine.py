"""What runs an epoch: its shuffled order, its steps by number, the optimiser and its precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.data.dataset import SessionDataset
from posrec.models.base import SessionModel
from posrec.training.losses import choose_loss, over_all_items
from posrec.training.ranking_losses import Negatives
from posrec.training.settings import Settings
from posrec.training.step import STEPS_AT_ONCE, CapturedStepper, Stepper, capacity_for, most_clicks


@dataclass(frozen=True)
class Order:
    """The samples of an epoch, shuffled, filled up to whole batches; the fillers weigh nothing."""

    ids: Tensor
    weights: Tensor
    steps: int


class Steps:
    """Runs the steps of an epoch by number, captured on a GPU, eager on a CPU."""

    def __init__(
        self,
        model: SessionModel,
        optimizer: torch.optim.Optimizer,
        samples: SessionDataset,
        settings: Settings,
        device: torch.device,
        items: int,
        max_length: int,
    ) -> None:
        self.model, self.optimizer, self.samples, self.settings = model, optimizer, samples, settings
        self.device, self.batch_size = device, settings.batch_size
        negatives = Negatives(settings.negatives, settings.sample_alpha, settings.in_batch)
        loss = choose_loss(settings.loss, items, samples.items, negatives, settings.score_l2)
        kind = CapturedStepper if device.type == "cuda" else Stepper
        self.max_length = min(max_length, max(1, samples.longest - 1))
        self.stepper = kind(
            model, optimizer, samples, loss, self.batch_size, self.max_length, settings.precision == "bf16",
            items if over_all_items(settings.loss, items) else None,
        )  # fmt: skip

    def shuffled(self, epoch: int) -> Order:
        """The epoch's own permutation, the same on every device and after a resume."""
        count, size = len(self.samples), self.batch_size
        random = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
        permutation = torch.randperm(count, generator=random)
        steps = -(-count // size)
        filler = permutation.new_zeros(steps * size - count)  # sample 0 has one click: no batch is fuller for it
        weights = torch.ones(steps * size)
        weights[count:] = 0
        order = Order(torch.cat([permutation, filler]).to(self.device), weights.to(self.device), steps)
        if isinstance(self.stepper, CapturedStepper):
            most = most_clicks(self.samples.clicks_before(order.ids).clamp(max=self.max_length), size)
            if most > (self.stepper.capacity or 0):
                self.stepper.capture(capacity_for(most))
        return order

    def run(self, order: Order, step: int) -> Tensor:
        """Some steps from number `step` on; gives the loss of each."""
        captured = isinstance(self.stepper, CapturedStepper)
        count = STEPS_AT_ONCE if captured and step + STEPS_AT_ONCE <= order.steps else 1
        part = slice(step * self.batch_size, (step + count) * self.batch_size)
        run = self.stepper.replay if isinstance(self.stepper, CapturedStepper) else self.stepper.run
        return run(order.ids[part], order.weights[part])


def make_optimizer(model: nn.Module, settings: Settings, device: torch.device) -> torch.optim.Optimizer:
    """Adam; every item gets a gradient from the softmax, so dense and fused is right. On a GPU the rate is a tensor,
    which a captured step reads anew each time."""
    captured = device.type == "cuda"
    rate = torch.tensor(settings.learning_rate, device=device) if captured else settings.learning_rate
    return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=settings.l2, fused=True, capturable=captured)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def matmul_precision(settings: Settings, device: torch.device) -> Iterator[None]:
    """TF32 for products on a GPU unless fp32 is asked for."""
    before = torch.get_float32_matmul_precision()
    reduced = device.type == "cuda" and settings.precision in ("auto", "tf32", "bf16")
    torch.set_float32_matmul_precision("high" if reduced else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
