"""Steps of several processes together: each computes a part of every batch, and holds a part of the item table.

The network is the same in all processes: its gradients are added up, in one buffer. The gradients of an item table's
rows are complete where the rows are (`nn/sharding.py`, `sharded_softmax.py`). A batch, its order and the weights of its
samples are those of a single process; only dropout differs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from posrec.models.base import SessionModel
from posrec.nn.collectives import World
from posrec.nn.item_table import rows_of
from posrec.nn.sharding import ShardedRows, tensors_by_rows

READ_STEPS = 32  # on a GPU, the losses are read after so many steps: reading them makes the CPU wait


class PartOfBatch:
    """The part of every batch that this process computes: the whole of it if the model is not spread over processes.

    Parts are of equal size, `size` samples; samples that fill them up have weight 0.
    """

    def __init__(self, model: SessionModel, batch_size: int) -> None:
        rows = rows_of(model)
        self.rows = rows if isinstance(rows, ShardedRows) else None
        self.world, self.size = None if self.rows is None else self.rows.world, batch_size
        if self.rows is not None:
            self.rows.batch_size = batch_size
            self.size = -(-batch_size // self.rows.world.size)
        by_rows = tensors_by_rows(model)
        self.replicated = [one for name, one in model.named_parameters() if name not in by_rows]

    def of(self, whole: Tensor) -> Tensor:
        """Batches [steps, width] -> this process's part of them, [steps, size]."""
        if self.world is None:
            return whole
        filled = self.filled(whole, -1)
        return filled[:, self.world.rank * self.size : (self.world.rank + 1) * self.size]

    def filled(self, whole: Tensor, value: int = 0) -> Tensor:
        """[steps, batch size] -> [steps, processes x size], with `value` for the samples that fill the parts up."""
        if self.world is None:
            return whole
        return functional.pad(whole, (0, self.world.size * self.size - whole.shape[1]), value=value)

    def add_up_gradients(self) -> None:
        """Add up the gradients of the network's weights over all processes."""
        gradients = [one.grad for one in self.replicated if one.grad is not None]
        if self.world is None or self.world.is_alone or not gradients:
            return
        total = self.world.summed(torch.cat([one.flatten() for one in gradients]))
        parts = torch.split(total, [one.numel() for one in gradients])
        for gradient, summed in zip(gradients, parts, strict=True):
            gradient.copy_(summed.view_as(gradient))

    @contextmanager
    def with_fixed_shapes(self) -> Iterator[None]:
        """In the block, look-ups in the item table have the same size in every step and process."""
        if self.rows is None:
            yield
            return
        self.rows.has_fixed_shapes = True
        try:
            yield
        finally:
            self.rows.has_fixed_shapes = False


def agree(world: World | None, device: torch.device, *wishes: bool) -> list[bool]:
    """Whether any process wants each of these: to stop, or to save a checkpoint.

    Processes receive a signal, and look at the clock, at different steps. They have to do the same after each.
    """
    if world is None:
        return list(wishes)
    found: list[bool] = (world.summed(torch.tensor(wishes, dtype=torch.int32, device=device)) > 0).tolist()
    return found
