"""SessionIndex: finds training sessions that share items with a session. It holds the items of each
session, and the sessions of each item.

Sessions are numbered from the newest, 0, so sorted lists of sessions begin with the newest. A
session is a set of items, each at the position of its latest click."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posrec.models.baselines.counting.neighbours import own_items
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import first_in_list, offsets_of, spread

# The weight of a click by the number of clicks after it and the session's length.
Weigh = Callable[[Tensor, Tensor], Tensor]
# Settings of the models that search it.
NEIGHBOURS: dict[str, Any] = {
    "meaning": "the number of neighbours",
    "at_least": 1,
    "tune": (100, 300, 500, 1000),
}
SAMPLE_SIZE: dict[str, Any] = {
    "meaning": "how many of the newest sessions are searched for neighbours",
    "at_least": 1,
    "tune": (1000, 2500, 5000),
}


@dataclass(frozen=True)
class SessionPairs:
    """G pairs of a session of the batch and a training session that shares an item with it, by row,
    newest first."""

    row: Tensor  # which session of the batch
    session: Tensor  # which training session
    overlap: Tensor  # the sum of the weights of the shared items
    backward: Tensor  # the number of clicks after the latest click on a shared item

    def __getitem__(self, index: Tensor) -> "SessionPairs":
        return SessionPairs(
            self.row[index],
            self.session[index],
            self.overlap[index],
            self.backward[index],
        )


class SessionIndex(nn.Module):
    """Its buffers are empty before `count`."""

    session_offsets: Tensor  # [S + 1] int64
    session_items: Tensor  # [E] int32, distinct within a session
    positions: Tensor  # [E] int32, of the item's latest click in the session, from 0
    item_offsets: Tensor  # [items + 2] int64; list 0 is empty, since items begin with 1
    item_sessions: Tensor  # [E] int32, newest first

    def __init__(self, items: int) -> None:
        super().__init__()
        self.items = items
        for name in ("session_offsets", "item_offsets"):
            self.register_buffer(name, torch.empty(0, dtype=torch.int64))
        for name in ("session_items", "positions", "item_sessions"):
            self.register_buffer(name, torch.empty(0, dtype=torch.int32))

    @property
    def sessions(self) -> int:
        return len(self.session_offsets) - 1

    def count(self, items: Tensor, offsets: Tensor) -> None:
        """Build the index from sessions, oldest first; `offsets` begins with 0."""
        lengths = offsets.diff()
        number = torch.arange(len(offsets) - 1, device=items.device)
        session = torch.repeat_interleave(number.flip(0), lengths)  # [N]
        begin = torch.repeat_interleave(offsets[:-1], lengths)
        position = torch.arange(len(items), device=items.device) - begin
        pair, order = (session * (self.items + 1) + items).sort(stable=True)
        latest = torch.ones_like(pair, dtype=torch.bool)  # on its item, in its session
        latest[:-1] = pair[1:] != pair[:-1]
        session = pair[latest] // (self.items + 1)
        item = pair[latest] % (self.items + 1)
        self.session_offsets = offsets_of(session, len(offsets) - 1)
        self.session_items = item.int()
        self.positions = position[order][latest].int()
        item, order = item.sort(stable=True)
        self.item_offsets = offsets_of(item, self.items + 1)
        self.item_sessions = session[order].int()

    def candidates(
        self, batch: SessionBatch, weigh: Weigh, sample_size: int
    ) -> SessionPairs:
        """The `sample_size` newest training sessions that share an item with each session. An item
        has the weight of its latest click."""
        row, column, backward = own_items(batch, self.items)  # [C]
        weights = weigh(backward, batch.lengths[row])
        # Only the newest sessions of a single item can be among the newest sessions of all items.
        click, entry = spread(self.item_offsets, column + 1, sample_size)
        width = batch.items.shape[1]
        pair = row[click] * self.sessions + self.item_sessions[entry]
        key, order = (pair * width + backward[click]).sort()
        pair = key // width
        first = torch.ones_like(pair, dtype=torch.bool)  # the latest click of each pair
        first[1:] = pair[1:] != pair[:-1]
        weight = weights[click[order]]
        group = first.cumsum(0) - 1
        overlap = weight.new_zeros(int(first.sum())).index_add_(0, group, weight)
        row = pair[first] // self.sessions
        session = pair[first] % self.sessions
        pairs = SessionPairs(row, session, overlap, key[first] % width)
        return pairs[first_in_list(row, sample_size)]
