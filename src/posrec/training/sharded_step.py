"""Optimiser steps of several processes together: each computes a part of the batch, and holds a part of the item table.

The network is the same in all processes: its gradients are added up, in one buffer. The gradients of an item table's
rows are complete where the rows are (`nn/sharding.py`, `sharded_softmax.py`). A batch, its order and the weights of its
samples are those of a single process; only dropout differs. Steps are eager, on a GPU too.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import collate
from posrec.nn.batch import SessionBatch
from posrec.nn.collectives import World
from posrec.nn.item_table import rows_of
from posrec.nn.sharding import ShardedRows, tensors_by_rows
from posrec.training.step import PlainStep, Stepper

READ_STEPS = 16  # on a GPU, the losses are read after so many steps: reading them makes the CPU wait


class ShardedStepper(Stepper):
    """Runs the steps of this process's part of each batch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        rows = rows_of(self.model)
        assert isinstance(rows, ShardedRows)
        self.world, rows.batch_size = rows.world, self.batch_size
        by_rows = tensors_by_rows(self.model)
        self.replicated = [one for name, one in self.model.named_parameters() if name not in by_rows]
        self.step = PlainStep(self.losses, self.optimizer, self.add_up_gradients)

    def run(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Run one step of the batch `ids`; returns this process's part of the loss, [1]. The parts add up to it."""
        shares = weights / weights.sum()
        # Parts are of equal size; what fills them up has weight 0.
        size = -(-len(ids) // self.world.size)
        filler = ids.new_zeros(size * self.world.size - len(ids))
        part = slice(self.world.rank * size, (self.world.rank + 1) * size)
        own = torch.cat([shares, shares.new_zeros(len(filler))])[part]
        losses = self.step(self.part_of_batch(torch.cat([ids, filler]), part), own)
        return (losses * own).sum()[None]

    def part_of_batch(self, ids: Tensor, part: slice) -> SessionBatch:
        """This process's part, as wide as the longest session of the whole batch, so that all parts are."""
        width = int(self.samples.clicks_before(ids).clamp(max=self.max_length).max())
        batch = replace(collate(self.samples, ids[part], width), when=self.samples.moments(ids[part]))
        return replace(batch, graph=self.model.build_graph(batch))

    def add_up_gradients(self) -> None:
        """Add up the gradients of the network's weights over all processes."""
        gradients = [one.grad for one in self.replicated if one.grad is not None]
        if not gradients:
            return
        total = self.world.summed(torch.cat([one.flatten() for one in gradients]))
        parts = torch.split(total, [one.numel() for one in gradients])
        for gradient, summed in zip(gradients, parts, strict=True):
            gradient.copy_(summed.view_as(gradient))


def agree(world: World | None, device: torch.device, *wishes: bool) -> list[bool]:
    """Whether any process wants each of these: to stop, or to save a checkpoint.

    Processes receive a signal, and look at the clock, at different steps. They have to do the same after each.
    """
    if world is None:
        return list(wishes)
    found: list[bool] = (world.summed(torch.tensor(wishes, dtype=torch.int32, device=device)) > 0).tolist()
    return found
