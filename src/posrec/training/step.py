"""Optimiser steps: eager on a CPU; compiled and captured as CUDA graphs on a GPU.

Replaying a captured graph runs no Python, so a step on a GPU takes as long as its kernels.
`torch.compile` fuses the small ones, and what does not depend on the weights (gathering samples,
building session graphs) is done for STEPS_AT_ONCE batches together, inside the captured graph."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import posrec.kernels as kernels
from posrec.errors import warnings_hidden
from posrec.kernels.launch import only_compiled
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.training.batches import Batches
from posrec.training.losses import losses_of
from posrec.training.softmax import Loss

# A batch -> the losses of its samples, [B].
Losses = Callable[[SessionBatch], Tensor]
# An optimiser step: a batch and the shares of its samples in the loss, [B] -> their losses, [B].
Step = Callable[[SessionBatch, Tensor], Tensor]
STEPS_AT_ONCE = 32
# Their warnings are for torch's developers.
COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
# Capacities are multiples of this, so that few have to be compiled.
CAPACITY_MULTIPLE = 256
HEADROOM = 1.1  # over the fullest batch so far, for the batches of later epochs
# Kernels are not tried out in several forms: that takes long, and makes no step quicker.
COMPILER_OPTIONS: dict[str, Any] = {
    "triton.autotune_pointwise": False,
    "shape_padding": False,
}


class Stepper:
    """Runs optimiser steps eagerly."""

    steps_at_once = 1  # a call of `run` takes this many steps, or a single one

    def __init__(
        self,
        model: SessionModel,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        loss: Loss,
        max_length: int,
        bf16: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.batches = batches
        self.loss = loss
        self.max_length = max_length
        self.device = batches.samples.items.device
        self.bf16 = bf16
        self.capacity: int | None = None  # of captured steps
        self.step: Step = plain_step(self.losses, optimizer)

    def prepare(self, batches: Tensor) -> None:
        """Called before each epoch with its batches, [steps, width]."""

    def losses(self, batch: SessionBatch) -> Tensor:
        """The loss of each sample, [B]."""
        assert batch.targets is not None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return losses_of(self.loss, self.model.batch_vectors(batch), batch.targets)

    def run(self, batches: Tensor) -> Tensor:
        """Run one step for each of `batches [steps, width]`; returns the loss of each step."""
        width = self.max_length
        if self.capacity is None:  # a captured step can't wait for values
            width = min(width, int(self.batches.clicks(batches).max()))
        # A batch of events that all have weight 0 changes nothing, instead of dividing by 0.
        tiny = torch.finfo(torch.float32).tiny
        totals = self.batches.unit_weights[batches].sum(1).clamp(min=tiny)
        step_losses = []
        read = self.batches.read(batches, width, self.capacity)
        for (batch, weights), total in zip(read, totals, strict=True):
            shares = weights / total
            losses = self.step(batch, shares)
            step_losses.append((losses * shares).sum())
        return torch.stack(step_losses)


def plain_step(losses: Losses, optimizer: torch.optim.Optimizer) -> Step:
    """Forward pass, backward pass, optimiser."""

    def step(batch: SessionBatch, shares: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        of_samples = losses(batch)
        torch.autograd.backward((of_samples * shares).sum())
        optimizer.step()
        return of_samples.detach()

    return step


class CapturedStepper(Stepper):
    """The same, replayed from captured CUDA graphs: of STEPS_AT_ONCE steps, and of a single one."""

    steps_at_once = STEPS_AT_ONCE

    def prepare(self, batches: Tensor) -> None:
        """Capture anew if a batch of the epoch has more clicks than there is room for."""
        width = batches.shape[1]
        if self.batches.capacity is not None:
            if self.capacity is None:
                self.capture(self.batches.capacity, width)
            return
        clicks = int(self.batches.clicks(batches).sum(1).max())
        if clicks > (self.capacity or 0):
            multiples = math.ceil(clicks * HEADROOM / CAPACITY_MULTIPLE)
            self.capture(multiples * CAPACITY_MULTIPLE, width)

    @warnings_hidden(*COMPILER)
    def capture(self, capacity: int, width: int) -> None:
        """Compile and capture steps for batches of `width` units with at most `capacity` clicks;
        the weights stay as they are."""
        self.capacity = capacity
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        state = {id(tensor): tensor.detach().clone() for tensor in self.tensors()}
        batches = torch.full((STEPS_AT_ONCE, width), -1, device=self.device)
        batches[:, 0] = 0
        # First in another stream, to compile kernels and allocate workspaces, which a capture
        # can't do.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Triton compiles our own kernels while torch compiles the rest.
            with only_compiled():
                self.step = plain_step(self.losses, self.optimizer)
                super().run(batches[:1])
            self.step = plain_step(compiled(self.losses, self.purpose), self.optimizer)
            super().run(batches[:1])
        torch.cuda.current_stream().wait_stream(aside)
        for steps in (STEPS_AT_ONCE, 1):
            self.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            inputs = batches[:steps].clone()
            # Only this thread's calls count as part of the capture: others may be compiling.
            with (
                garbage_collection_paused(),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                losses = super().run(inputs)
            self.graphs[steps] = (graph, inputs, losses)
        self.restore(state)

    @property
    def purpose(self) -> Any:
        """What compiled steps depend on."""
        model = self.model
        precision = torch.get_float32_matmul_precision()
        shapes = (model.items, self.batches.size, self.max_length, self.capacity)
        return type(model), model.config, shapes, self.bf16, precision

    def run(self, batches: Tensor) -> Tensor:
        """Replay the captured steps; `batches` are STEPS_AT_ONCE or one."""
        graph, inputs, losses = self.graphs[len(batches)]
        inputs.copy_(batches)
        graph.replay()
        return losses.clone()

    @torch.no_grad()
    def restore(self, state: dict[int, Tensor]) -> None:
        """Go back to `state`, clones by the ids of the tensors; what was created since is 0."""
        for tensor in self.tensors():
            if id(tensor) in state:
                tensor.copy_(state[id(tensor)])
            else:
                tensor.zero_()

    def tensors(self) -> list[Tensor]:
        """The weights, and the optimiser's state."""
        tensors: list[Tensor] = list(self.model.parameters())
        for state in self.optimizer.state.values():
            tensors += state.values()
        return tensors


compiled_for: list[Any] = []  # the purpose of what is compiled, if anything is


def compiled(losses: Losses, purpose: Any) -> Losses:
    """torch.compile for fixed shapes. What was compiled before is used again if it was for the same
    purpose, or else dropped, since it counts towards torch's limit. Importing the compiler takes
    seconds, so nothing else touches it."""
    # They read a global setting, which can't be traced.
    for setting in (kernels.may_round, kernels.precision):
        torch.compiler.assume_constant_result(setting)  # type: ignore[no-untyped-call]
    # What is compiled is kept on disk, even where it has gradients of its own.
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
    if compiled_for and compiled_for != [purpose]:
        torch.compiler.reset()
    compiled_for[:] = [purpose]
    return torch.compile(losses, dynamic=False, options=COMPILER_OPTIONS)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """The graphs of an earlier training would free device memory, which ends a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
