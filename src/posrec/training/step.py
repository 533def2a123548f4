"""Optimiser steps: eager on a CPU; compiled and captured as CUDA graphs on a GPU.

Replaying a captured graph has no Python in it, so what a step costs on a GPU is its kernels. Two things keep those few:
`torch.compile` fuses the model's small operations, and what does not depend on the weights (gathering the samples,
building the session graphs) is done for STEPS_AT_ONCE batches together, inside the same captured graph as their steps.
"""

from dataclasses import replace
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from posrec.data.batch import SessionBatch, collate
from posrec.data.graph import SessionGraph
from posrec.data.sessions import SessionDataset
from posrec.training.losses import Loss

STEPS_AT_ONCE = 32
ROWS_APART = 128  # capacities are multiples of this, so that few of them have to be compiled for


class SessionModel(Protocol):
    """What the engine asks of a model; `build_graph` only where it reads graphs."""

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """Session vectors [B, d] and item vectors [n or a few more, d]."""
        ...


class GraphModel(Protocol):
    def build_graph(self, batch: SessionBatch) -> SessionGraph: ...


class Stepper:
    """Runs steps over batches of samples. A sample of weight 0 only fills its batch up, so all have the same shape."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        samples: SessionDataset,
        loss: Loss,
        batch_size: int,
        max_length: int,
        bf16: bool = False,
    ) -> None:
        self.model, self.optimizer, self.samples, self.loss = model, optimizer, samples, loss
        self.batch_size, self.max_length, self.bf16 = batch_size, max_length, bf16
        self.device = samples.items.device
        self.capacity: int | None = None
        self.weighted_loss = self.plain_loss

    def batches(self, ids: Tensor) -> SessionBatch:
        """The samples of several batches as one, with their graphs where the model reads graphs."""
        batch = collate(self.samples, ids, self.max_length)
        if self.device.type == "cpu":
            batch = batch.trimmed()
        if hasattr(self.model, "build_graph"):
            batch = replace(batch, graph=cast(GraphModel, self.model).build_graph(batch))
        return replace(batch, capacity=self.capacity)

    def plain_loss(self, batch: SessionBatch, weights: Tensor) -> Tensor:
        model = cast(SessionModel, self.model)
        assert batch.targets is not None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            losses = self.loss(*model.vectors(batch), batch.targets)
        return (losses * weights).sum() / weights.sum()

    def run(self, ids: Tensor, weights: Tensor) -> Tensor:
        """One step for each `batch_size` of `ids`; gives the loss of each step."""
        everything = self.batches(ids)
        losses = []
        for start in range(0, len(ids), self.batch_size):
            end = start + self.batch_size
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.weighted_loss(everything.rows(start, end), weights[start:end])
            torch.autograd.backward(loss)
            self.optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)


class CapturedStepper(Stepper):
    """The same steps from captured CUDA graphs: one of STEPS_AT_ONCE steps, one of a single step for what is left."""

    def capture(self, capacity: int) -> None:
        """Compile and capture for batches of at most `capacity` clicks; the weights are left as they were."""
        self.capacity = capacity
        torch.compiler.reset()  # what was compiled for other models or capacities counts against a limit
        self.weighted_loss = torch.compile(self.plain_loss, dynamic=False)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = {}
        state = self.snapshot()
        for steps in (STEPS_AT_ONCE, 1):
            ids = torch.zeros(steps * self.batch_size, dtype=torch.long, device=self.device)
            weights = torch.ones(len(ids), device=self.device)
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # kernels must be compiled, and workspaces allotted, before the capture
                self.run(ids[: self.batch_size], weights[: self.batch_size])
            torch.cuda.current_stream().wait_stream(aside)
            self.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                losses = self.run(ids, weights)
            self.graphs[steps] = (graph, ids, weights, losses)
        self.restore(state)

    def replay(self, ids: Tensor, weights: Tensor) -> Tensor:
        """`run` without Python; `ids` are STEPS_AT_ONCE batches or one."""
        graph, own_ids, own_weights, losses = self.graphs[len(ids) // self.batch_size]
        own_ids.copy_(ids)
        own_weights.copy_(weights)
        graph.replay()
        return losses.clone()

    def snapshot(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self.tensors()]

    def restore(self, state: list[Tensor]) -> None:
        """Back to the snapshot; what the optimiser has made since starts from zero."""
        with torch.no_grad():
            for index, tensor in enumerate(self.tensors()):
                tensor.copy_(state[index]) if index < len(state) else tensor.zero_()

    def tensors(self) -> list[Tensor]:
        weights = list(self.model.parameters())
        moments = [value for parameter in weights for value in self.optimizer.state.get(parameter, {}).values()]
        return [*weights, *moments]


def needed_capacity(lengths: Tensor, batch_size: int) -> int:
    """The most clicks in any batch of `lengths [batches x batch_size]`, rounded up."""
    most = int(lengths.view(-1, batch_size).sum(1).max())
    return -(-most // ROWS_APART) * ROWS_APART
