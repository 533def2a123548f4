"""The training step, three ways: eager (CPU), and compiled and captured as a CUDA graph (GPU).

A graph replay has no Python in it, so what a step costs on a GPU is its kernels. Two things keep those few: `torch.compile`
fuses the model's small operations, and the work that does not depend on the weights (gathering the samples, building the
session graphs) is done for `STEPS_AT_ONCE` batches together, inside the same captured graph as their steps.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from posrec.data.batch import SessionBatch, collate
from posrec.data.graph import build_graph
from posrec.data.sessions import SessionDataset

STEPS_AT_ONCE = 32
WARM_UP_STEPS = 3

LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


class TrainableModel(Protocol):
    """What the engine asks of a model."""

    def session_vectors(self, batch: SessionBatch) -> Tensor: ...
    def item_vectors(self) -> Tensor: ...
    def parameters(self) -> "list[torch.nn.Parameter]": ...


class Stepper:
    """Runs optimiser steps over samples of a dataset; `run(ids, weights)` takes whole batches, several at once.

    A sample of weight 0 fills a batch up and counts nothing, so that every batch has the same shape.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: SessionDataset,
        loss: LossFunction,
        batch_size: int,
        max_length: int,
        precision: str = "tf32",
        capacity: int | None = None,
    ) -> None:
        self.capacity = capacity
        self.model, self.optimizer, self.dataset, self.loss = model, optimizer, dataset, loss
        self.batch_size, self.max_length, self.precision = batch_size, max_length, precision
        self.device = dataset.items.device

    def batches(self, ids: Tensor) -> SessionBatch:
        """The samples of several batches as one, with their graphs where the model reads graphs."""
        batch = collate(self.dataset, ids, self.max_length)
        if self.device.type == "cpu":
            batch = batch.trimmed()
        if hasattr(self.model, "build_graph"):
            batch = replace(batch, graph=self.model.build_graph(batch))
        return replace(batch, capacity=self.capacity)

    def weighted_loss(self, batch: SessionBatch, weights: Tensor) -> Tensor:
        assert batch.targets is not None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            losses = self.loss(self.model.session_vectors(batch), self.model.item_vectors(), batch.targets)
        return (losses * weights).sum() / weights.sum()

    def run(self, ids: Tensor, weights: Tensor) -> Tensor:
        """One step for each `batch_size` of `ids`; gives the loss of each step."""
        everything = self.batches(ids)
        losses = []
        for start in range(0, len(ids), self.batch_size):
            end = start + self.batch_size
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.weighted_loss(everything.rows(start, end), weights[start:end])
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)
