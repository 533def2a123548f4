"""Packing: compute only on the filled slots of a padded batch.

Linear layers run over `rows [T, d]`, the filled slots one after the other; attention and graph
messages, which combine the slots of a session, over `slots [B, L, d]`. Shapes of a captured GPU
step can't depend on the data, so T may be a `capacity`; nothing reads the rows after the last slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Packing:
    """The row of each filled slot, and the slot of each row."""

    row_of_slot: Tensor  # [B, L]; arbitrary for an empty slot
    slot_of_row: Tensor  # [T], into B x L flattened; arbitrary for a row without a slot
    filled: Tensor  # [B, L] True for filled slots
    used: Tensor | None  # [T] True for rows that have a slot; None if all have
    begins: Tensor  # [B + 1] session b has the rows begins[b] .. begins[b + 1] - 1

    @property
    def sessions(self) -> int:
        return self.filled.shape[0]

    @property
    def longest(self) -> int:
        return self.filled.shape[1]

    def to_rows(self, slots: Tensor) -> Tensor:
        """[B, L, ...] -> [T, ...]."""
        rows: Tensor = ToRows.apply(  # type: ignore[no-untyped-call]
            slots, self.slot_of_row, self.row_of_slot, self.filled, self.used
        )
        return rows

    def to_slots(self, rows: Tensor) -> Tensor:
        """[T, ...] -> [B, L, ...]; the caller has to mask empty slots, whose values are
        arbitrary."""
        slots: Tensor = ToSlots.apply(  # type: ignore[no-untyped-call]
            rows, self.row_of_slot, self.slot_of_row, self.used
        )
        return slots

    def row_at(self, slot: Tensor) -> Tensor:
        """slot [B], one of each session -> [B] its row."""
        return self.row_of_slot.gather(1, slot[:, None])[:, 0]


def pack(filled: Tensor, capacity: int | None = None) -> Packing:
    """`filled [B, L]` -> a row for each filled slot, or `capacity` rows."""
    if capacity is not None:
        return pack_many(filled, capacity, len(filled))[0]
    # [B, L] the number of filled slots up to and including each slot
    through = filled.flatten().long().cumsum(0).view_as(filled)
    begins = functional.pad(through[:, -1], (1, 0))
    row_of_slot = torch.where(filled, through - 1, 0)
    return Packing(row_of_slot, filled.flatten().nonzero()[:, 0], filled, None, begins)


def constants(sizes: Sequence[int]) -> list[int]:
    """Sizes that are the same for every batch. An exported network would compute them in every run,
    each by several operations."""
    return [int(size) for size in sizes]


def pack_many(filled: Tensor, capacity: int, sessions: int) -> list[Packing]:
    """`filled [S x sessions, L]` -> the packings of S batches, of `capacity` rows each."""
    batches = filled.view(-1, sessions, filled.shape[1])  # [S, B, L]
    # [S, B L] the number of filled slots up to and including each slot
    through = batches.flatten(1).cumsum(1)
    last_of_session = through.view_as(batches)[:, :, -1]  # [S, B]
    # An even number of columns aligns every batch to 16 bytes, as compiled code expects.
    begins = functional.pad(last_of_session, (1, 1 + sessions % 2))[:, : sessions + 1]
    row_of_slot = torch.where(batches, through.view_as(batches) - 1, 0)
    row = torch.arange(capacity, device=filled.device).expand(len(batches), -1)
    slot_of_row = torch.searchsorted(through, row + 1).clamp(max=through.shape[1] - 1)
    used = row < through[:, -1:]  # [S, T]
    fields = zip(row_of_slot, slot_of_row, batches, used, begins, strict=True)
    return [Packing(*of_batch) for of_batch in fields]


def is_traced() -> bool:
    """Whether torch records the operations, to compile or to export them."""
    if torch.compiler.is_compiling():
        return True
    is_exporting: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return is_exporting


def is_eager_on_cpu(x: Tensor) -> bool:
    """Whether to use what is for CPUs alone, and can neither be compiled nor exported."""
    return x.device.type == "cpu" and not is_traced()


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Zeros where `mask`, which has the first dimensions of `values`, is False."""
    inner = (1,) * (values.dim() - mask.dim())
    return torch.where(mask.view(mask.shape + inner), values, 0)


def copy_to_slots(rows: Tensor, slot_of_row: Tensor, shape: torch.Size) -> Tensor:
    """[T, ...] -> [B, L, ...] if every row has a slot. It moves fewer values than a gather."""
    slots = rows.new_zeros(shape.numel(), *rows.shape[1:])
    return slots.index_copy_(0, slot_of_row, rows).view(*shape, *rows.shape[1:])


class ToRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        slots: Tensor,
        slot_of_row: Tensor,
        row_of_slot: Tensor,
        filled: Tensor,
        used: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(slot_of_row, row_of_slot, filled)
        ctx.all_used = used is None
        return slots.flatten(0, 1).index_select(0, slot_of_row)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slot_of_row, row_of_slot, filled = ctx.saved_tensors
        (grad_rows,) = gradients
        if ctx.all_used:
            grad_slots = copy_to_slots(grad_rows, slot_of_row, filled.shape)
        else:
            grad_slots = masked(grad_rows[row_of_slot], filled)
        return grad_slots, None, None, None, None


class ToSlots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        row_of_slot: Tensor,
        slot_of_row: Tensor,
        used: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(slot_of_row, used)
        if used is not None or is_traced():  # runtimes are quicker to gather
            return rows[row_of_slot]
        return copy_to_slots(rows, slot_of_row, row_of_slot.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slot_of_row, used = ctx.saved_tensors
        (grad_slots,) = gradients
        grad_rows = grad_slots.flatten(0, 1).index_select(0, slot_of_row)
        if used is not None:
            grad_rows = masked(grad_rows, used)
        return grad_rows, None, None, None
