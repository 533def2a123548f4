"""Optimiser steps: eager on a CPU; compiled and captured as CUDA graphs on a GPU.

Replaying a captured graph runs no Python, so a step on a GPU takes as long as its kernels. Two things keep their number
small: `torch.compile` fuses the model's small operations, and what does not depend on the weights (gathering the
samples, building the session graphs) is done for STEPS_AT_ONCE batches together, inside the same captured graph as
their steps.

Where several processes train together, a step is that of this process's part of the batch (`sharded_step.py`).
"""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from posrec import kernels
from posrec.data.dataset import SessionDataset, collate
from posrec.kernels.launch import only_compiled
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.packing import Packing, pack_many
from posrec.nn.table_rows import TableRows
from posrec.training.adam import begin_adam
from posrec.training.losses import Loss, losses_of
from posrec.training.sharded_step import PartOfBatch

P = ParamSpec("P")
R = TypeVar("R")
STEPS_AT_ONCE = 32
WIDEST = 256  # the largest d that the fused kernels support
ROWS_APART = 256  # capacities are multiples of this, so that few different ones have to be compiled
HEADROOM = 1.1  # over the fullest batch of the first epoch, for the batches of later epochs


class Step(Protocol):
    """Optimiser steps, one after the other."""

    def __call__(self, batches: Sequence[SessionBatch], shares: Tensor) -> list[Tensor]:
        """`shares [steps, B]` are the weights of the samples in each step's loss; returns the losses of the samples,
        [B] for each step."""


class Stepper:
    """Runs optimiser steps eagerly. All batches have the same size; samples that only fill one up have weight 0."""

    steps_at_once = 1  # a call of `run` takes so many steps, or a single one

    def __init__(
        self,
        model: SessionModel,
        optimizer: torch.optim.Optimizer,
        samples: SessionDataset,
        loss: Loss,
        batch_size: int,
        max_length: int,
        bf16: bool = False,
        softmax_items: int | None = None,
    ) -> None:
        self.model, self.optimizer, self.samples, self.loss = model, optimizer, samples, loss
        self.batch_size, self.max_length, self.bf16 = batch_size, max_length, bf16
        self.softmax_items = softmax_items  # the number of items where the loss is a softmax over all of them
        self.device = samples.items.device
        self.filler = shortest_sample(samples)  # fills batches up, because it takes the least room
        self.part = PartOfBatch(model, batch_size)
        self.capacity: int | None = None
        self.step: Step = PlainStep(self.losses, optimizer, self.part.add_up_gradients)

    def prepare(self, lengths: Tensor) -> None:
        """Called before each epoch with the clicks of its samples, `lengths [steps x batch_size]`, in their order.

        Eager steps take batches of any size, so there is nothing to prepare.
        """

    def run(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Run one step for each `batch_size` of `ids`; returns the loss of each step. Of several processes each returns
        the part of its own samples, and the parts add up to the loss."""
        return self.run_eagerly(ids, weights)

    def batches(self, ids: Tensor, width: int) -> SessionBatch:
        """The samples of several batches as one, with their session graphs if the model reads graphs."""
        batch = replace(collate(self.samples, ids, width), when=self.samples.moments(ids))
        return replace(batch, graph=self.model.build_graph(batch), capacity=self.capacity)

    def width_of(self, ids: Tensor) -> int:
        """How many clicks to reserve for a session: those of the longest one, or where that can't be known without
        waiting for the device, of any."""
        if self.device.type != "cpu":
            return self.max_length
        return min(self.max_length, int(self.samples.clicks_before(ids).max()))

    def losses(self, batch: SessionBatch) -> Tensor:
        """The loss of each sample, [B]."""
        assert batch.targets is not None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return losses_of(self.loss, self.model.encode(batch), batch.targets)

    def run_eagerly(self, ids: Tensor, weights: Tensor) -> Tensor:
        shares = weights.view(-1, self.batch_size)
        shares = self.part.of(shares / shares.sum(1, keepdim=True))
        own_ids, size = self.part.of(ids.view(-1, self.batch_size)), self.part.size
        everything = self.batches(own_ids.flatten(), self.width_of(ids))
        batches = [
            replace(everything.rows(number * size, (number + 1) * size), packing=packing)
            for number, packing in enumerate(self.packings(everything, len(shares)))
        ]
        return (torch.stack(self.step(batches, shares)) * shares).sum(1)

    def packings(self, batch: SessionBatch, steps: int) -> Sequence[Packing | None]:
        """The packing of each step's batch if a capacity is set; otherwise None, and the model packs for itself."""
        if self.capacity is None:
            return [None] * steps
        filled = batch.mask if batch.graph is None else batch.graph.nodes
        return pack_many(filled, self.capacity, self.part.size)


class PlainStep:
    """Forward pass, backward pass, optimiser. `after_backward` may change the gradients."""

    def __init__(
        self,
        losses: Callable[[SessionBatch], Tensor],
        optimizer: torch.optim.Optimizer,
        after_backward: Callable[[], None],
    ) -> None:
        self.losses, self.optimizer, self.after_backward = losses, optimizer, after_backward

    def __call__(self, batches: Sequence[SessionBatch], shares: Tensor) -> list[Tensor]:
        return [self.step(batch, own) for batch, own in zip(batches, shares, strict=True)]

    def step(self, batch: SessionBatch, shares: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.losses(batch)
        torch.autograd.backward((losses * shares).sum())
        self.after_backward()
        self.optimizer.step()
        return losses.detach()


class CapturedStepper(Stepper):
    """The same steps, replayed from captured CUDA graphs: one of STEPS_AT_ONCE steps, and one of a single step."""

    steps_at_once = STEPS_AT_ONCE

    def prepare(self, lengths: Tensor) -> None:
        """Capture anew if a batch of the epoch has more clicks than the captured steps have room for."""
        lengths = self.part.filled(lengths.view(-1, self.batch_size), self.max_length)
        clicks = most_clicks(lengths, self.part.size)
        if clicks > (self.capacity or 0):
            self.capture(capacity_for(clicks))

    def capture(self, capacity: int) -> None:
        """Compile and capture steps for batches of at most `capacity` clicks; the weights stay as they are."""
        with self.part.with_fixed_shapes():
            self.capture_steps(capacity)

    def capture_steps(self, capacity: int) -> None:
        self.capacity = capacity
        self.step = self.compiled_step()
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = {}
        state = self.snapshot()
        for steps in (STEPS_AT_ONCE, 1):
            ids = torch.full((steps * self.batch_size,), self.filler, device=self.device)
            weights = torch.ones(len(ids), device=self.device)
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # compiles kernels and allocates workspaces, which a capture can't do
                with only_compiled():
                    self.run_eagerly(ids[: self.batch_size], weights[: self.batch_size])
                self.run_eagerly(ids[: self.batch_size], weights[: self.batch_size])
            torch.cuda.current_stream().wait_stream(aside)
            self.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            # Only this thread's calls count as part of the capture: NCCL has a thread of its own.
            with garbage_left(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                losses = self.run_eagerly(ids, weights)
            self.graphs[steps] = (graph, ids, weights, losses)
        self.restore(state)

    def compiled_step(self) -> Step:
        """The fused step if the loss is a softmax over all items and products may be rounded; else a compiled one."""
        table, world, add_up = scored_parameter(self.model), self.part.world, self.part.add_up_gradients
        exact = torch.get_float32_matmul_precision() == "highest"
        plain = self.bf16 or exact or self.model.has_own_items
        if plain or self.softmax_items is None or table is None or table.shape[1] > WIDEST:
            if world is not None:
                # Its products are in context managers that can't be traced.
                self.loss = torch.compiler.disable(self.loss)  # type: ignore[no-untyped-call]
            return PlainStep(compiled(self.losses), self.optimizer, add_up)
        from posrec.training.fused import CompiledEncoder, FusedStep

        begin_adam(self.optimizer)
        rows = TableRows(self.softmax_items) if self.part.rows is None else self.part.rows
        encoder = None
        if world is None or world.is_alone:
            encoder = self.model.step_encoder(self.part.size, self.max_length, self.optimizer)
        if encoder is None:
            encoder = CompiledEncoder(compiled(self.model.session_vectors), table, self.optimizer, add_up)
        return FusedStep(encoder, table, rows, self.part.size, self.optimizer)

    def run(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Replay the captured steps; `ids` are STEPS_AT_ONCE batches or one."""
        graph, own_ids, own_weights, losses = self.graphs[len(ids) // self.batch_size]
        own_ids.copy_(ids)
        own_weights.copy_(weights)
        graph.replay()
        return losses.clone()

    def snapshot(self) -> dict[int, Tensor]:
        return {id(tensor): tensor.detach().clone() for tensor in self.tensors()}

    def restore(self, state: dict[int, Tensor]) -> None:
        """Go back to the snapshot; optimiser state that was created since is set to zero."""
        with torch.no_grad():
            for tensor in self.tensors():
                tensor.copy_(state[id(tensor)]) if id(tensor) in state else tensor.zero_()

    def tensors(self) -> list[Tensor]:
        weights = list(self.model.parameters())
        moments = [value for parameter in weights for value in self.optimizer.state.get(parameter, {}).values()]
        return [*weights, *moments]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile for fixed shapes. Importing the compiler takes seconds, so nothing else touches it."""
    # It reads a global setting, which can't be traced.
    torch.compiler.assume_constant_result(kernels.precision)  # type: ignore[no-untyped-call]
    torch.compiler.reset()  # what was compiled for other models or capacities counts towards torch's limit
    return torch.compile(function, dynamic=False)


@contextmanager
def garbage_left() -> Iterator[None]:
    """In the block, garbage is not collected: the graphs of an earlier training would free device memory, and that ends
    a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def scored_parameter(model: SessionModel) -> nn.Parameter | None:
    """The parameter whose first rows are the item vectors, or None if the item vectors are computed."""
    vectors = model.item_vectors()
    return next((parameter for parameter in model.parameters() if parameter.data_ptr() == vectors.data_ptr()), None)


def shortest_sample(samples: SessionDataset) -> int:
    """The number of the sample with the fewest clicks."""
    clicks = samples.clicks_before(torch.arange(len(samples), device=samples.items.device))
    return int(clicks.argmin()) if len(clicks) else 0


def most_clicks(lengths: Tensor, batch_size: int) -> int:
    """The most clicks in any batch of `lengths [batches x batch_size]`."""
    return int(lengths.reshape(-1, batch_size).sum(1).max())


def capacity_for(clicks: int) -> int:
    """How many rows to reserve for batches of up to `clicks` clicks, with some headroom."""
    return math.ceil(clicks * HEADROOM / ROWS_APART) * ROWS_APART
