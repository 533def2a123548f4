"""The clicks of a batch in two layouts, of which a model's equations see the same methods.

`PackedClicks` holds the clicks of all sessions in rows, and a vector is asked for at each: training
and evaluation. `PaddedClicks` holds sessions as [B, L], and a vector is asked for at the last click
of each: recommending. A value "of every click" is [T, ...] or [B, L, ...]. Of Q = T or B clicks
that are asked for, each sees W clicks: itself and those before it, by distance or by position."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from posrec.encodings.schemes import look_up
from posrec.nn.packing import Packing, constants


class PackedClicks:
    """Clicks are rows of a packing, one session after the other, so the click at distance k before
    row t is row t - k."""

    def __init__(self, items: Tensor, packing: Packing) -> None:
        """`items` [T] of the rows."""
        rows = packing.slot_of_row.shape[0]
        width = packing.longest
        self.packing = packing
        self.items = items  # of every click, 0 for unknown items
        position = packing.slot_of_row % width
        if packing.used is not None:
            # A row without a slot sees itself alone.
            position = torch.where(packing.used, position, 0)
        self.row = torch.arange(rows, device=items.device)
        self.row_position = position
        self.first_row = self.row - position
        self.length = position[:, None] + 1  # [Q, 1] up to a click that is asked for
        self.slot = torch.arange(width, device=items.device)  # [L]
        # [1 or B, R] where each query of a session asks, and [R] the slot whose item it has
        self.query_slot = self.slot.repeat_interleave(2)[None]
        self.query_item = torch.stack([self.slot, torch.zeros_like(self.slot)], 1)
        self.query_item = self.query_item.flatten()
        # [W] or [Q, W] how far before the asked click each seen click is
        self.distance = self.slot
        before = self.row[:, None] - self.distance
        # Not clamp, of which torch's compiler makes an index that it can't use.
        self.seen_rows = torch.where(before >= 0, before, 0)  # [T, W]
        is_seen = self.distance < self.length
        same = (items[self.seen_rows] == items[:, None]) & is_seen
        # Of every click: clicks on its item so far, with this one; whether there were some before,
        # [Q, 1]; and the position of the first.
        self.times = same.sum(1)
        self.is_return = self.times[:, None] > 1
        self.first_time = position - torch.where(same, self.distance, 0).amax(1)
        back = torch.where(same & (self.distance > 0), self.distance, width).amin(1)
        # A click is the next one of the click that it returns to; those that return to none are
        # written to an extra element.
        earlier = torch.where(back < width, self.row - back, rows)
        none = torch.full((rows + 1,), width, dtype=torch.long, device=items.device)
        next_time = none.scatter(0, earlier, back)[:-1]  # [T] its distance
        is_latest = is_seen & (next_time[self.seen_rows] > self.distance)
        # [Q, W] the items that are seen, each where it was clicked last; elsewhere 0
        self.latest = torch.where(is_latest, items[self.seen_rows], 0)

    @property
    def longest(self) -> int:
        """L"""
        return self.packing.longest

    def before(self, x: Tensor) -> Tensor:
        """The values of the click before every click; 0 before the first."""
        return torch.where(self.length > 1, x.roll(1, 0), 0)

    def by_position(self, table: Tensor) -> Tensor:
        """The row of a table [P, d] for the position of every click."""
        return look_up(table, self.row_position)

    def of_first(self, x: Tensor, table: Tensor) -> Tensor:
        """The values of the session's first click, plus the row of a table [P, d] for the position
        of the asked click: the second query at each click that is asked for."""
        return x[self.first_row] + self.by_position(table)

    def joined(self, own: Tensor, first: Tensor) -> Tensor:
        """The queries of every click and the second ones, [..., d] together."""
        return torch.stack([own, first], 1)

    def parted(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """What `joined` has joined."""
        own, first = queries.unbind(1)
        return own, first

    def asked(self, *values: Tensor) -> Sequence[Tensor]:
        """Each of every click, [..., d] -> [Q, d], of the clicks that are asked for."""
        return values

    def of_asked(self, x: Tensor) -> Tensor:
        """Of a second query, as `of_first` gives it -> [Q, d]."""
        return x

    def seen(self, x: Tensor) -> Tensor:
        """Of every click -> [Q, W, ...], of the clicks that each asked click sees."""
        if x.dim() == 2 and x.is_floating_point():
            # The gradient of an embedding is quick on a CPU, and summed in order.
            return functional.embedding(self.seen_rows, x)
        return x[self.seen_rows]

    def same_in_slots(self) -> Tensor:
        """[B, L, L] 1 where two clicks of a session are on the same item."""
        items = self.to_slots(self.items)
        return (items[:, :, None] == items[:, None]).float()

    def to_slots(self, x: Tensor) -> Tensor:
        """Of every click -> [B, L, ...]."""
        return self.packing.to_slots(x)

    def queries_to_slots(self, x: Tensor) -> Tensor:
        """As of `joined` -> [B, R, d], R queries of a session."""
        return self.packing.to_slots(x).flatten(1, 2)

    def queries_to_rows(self, slots: Tensor) -> Tensor:
        """[B, R, d] -> as of `joined`."""
        return self.packing.to_rows(slots.unflatten(1, (-1, 2)))  # type: ignore[no-untyped-call]


class PaddedClicks:
    """Sessions [B, L]. An exported network takes most of its time for the number of operations, so
    these are few."""

    def __init__(self, items: Tensor, lengths: Tensor) -> None:
        """`items` [B, L], `lengths` [B]."""
        self.items = items
        self.slot = torch.arange(items.shape[1], device=items.device)
        self.length = lengths[:, None]
        self.position = self.length - 1
        self.distance = self.position - self.slot
        own_slot = self.slot.expand_as(items)
        self.query_slot = torch.cat([own_slot, self.position], 1)
        self.query_item = functional.pad(self.slot, (0, 1))
        self.same = (items[:, :, None] == items[:, None]).float()  # [B, L, L]
        same_so_far = self.same.tril()
        times = same_so_far.sum(2)
        self.times = times.long()
        self.first_time = same_so_far.argmax(2)
        self.is_return = times.gather(1, self.position) > 1
        # Padding has no number, as an unknown item has none.
        self.latest = torch.where(times == self.same.sum(2), items, 0)
        self.is_asked = self.distance[:, None] == 0  # [B, 1, L]

    @property
    def longest(self) -> int:
        return self.items.shape[1]

    def before(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, 0, 1, -1))

    def by_position(self, table: Tensor) -> Tensor:
        return table[: self.longest]

    def of_first(self, x: Tensor, table: Tensor) -> Tensor:
        return x[:, :1] + table[self.position]

    def joined(self, own: Tensor, first: Tensor) -> Tensor:
        return torch.cat([own, first], 1)

    def parted(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        return queries[:, :-1], queries[:, -1:]

    def asked(self, *values: Tensor) -> Sequence[Tensor]:
        # A product with 0 and 1 is one operation, which a look-up is not.
        side_by_side = torch.cat(values, 2)
        together = (self.is_asked.to(side_by_side.dtype) @ side_by_side).squeeze(1)
        return torch.split(together, constants([value.shape[2] for value in values]), 1)

    def of_asked(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def seen(self, x: Tensor) -> Tensor:
        return x

    def same_in_slots(self) -> Tensor:
        return self.same

    def to_slots(self, x: Tensor) -> Tensor:
        return x

    def queries_to_slots(self, x: Tensor) -> Tensor:
        return x

    def queries_to_rows(self, slots: Tensor) -> Tensor:
        return slots


Clicks = PackedClicks | PaddedClicks
