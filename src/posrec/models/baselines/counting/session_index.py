"""SessionIndex: finds training sessions that share items with a session. It holds the items of each
session, and the sessions of each item.

Sessions are numbered from the newest, 0, so sorted lists of sessions begin with the newest. A
session is a set of items, each at the position of its latest click."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.models.baselines.counting.neighbours import latest_clicks
from posrec.nn.counting import first_in_list, offsets_of, spread


@dataclass(frozen=True)
class SessionPairs:
    """Pairs of a session of the batch and a training session that shares an item with it, by row,
    newest first."""

    row: Tensor  # [G] which session of the batch
    session: Tensor  # [G] which training session
    overlap: Tensor  # [G] the sum of the weights of the shared items
    backward: Tensor  # [G] the distance of the latest click on a shared item from the end of the batch's session

    def only(self, kept: Tensor) -> "SessionPairs":
        return SessionPairs(
            self.row[kept], self.session[kept], self.overlap[kept], self.backward[kept]
        )


class SessionIndex(nn.Module):
    """The index; its buffers are empty before `count`."""

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
        """Build the index from the training sessions, oldest first; the arguments are those of
        CountingModel.count."""
        items = items[offsets[0] : offsets[-1]].long()
        offsets = offsets - offsets[0]
        number = torch.arange(len(offsets) - 1, device=items.device)
        session = torch.repeat_interleave(number.flip(0), offsets.diff())  # [N]
        position = torch.arange(
            len(items), device=items.device
        ) - torch.repeat_interleave(offsets[:-1], offsets.diff())
        pair, order = (session * (self.items + 1) + items).sort(stable=True)
        latest = torch.ones_like(
            pair, dtype=torch.bool
        )  # True for the latest of a session's clicks on an item
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
        self, items: Tensor, lengths: Tensor, weights: Tensor, sample_size: int
    ) -> SessionPairs:
        """The `sample_size` newest training sessions that share an item with each session.

        `items [B, L]` padded on the right, `lengths [B]`, `weights [B, L]` of the clicks. An item
        that was clicked several times has the weight of its latest click."""
        row, column = latest_clicks(items, lengths, self.items).nonzero(
            as_tuple=True
        )  # [C]
        # Only the newest sessions of a single item can be among the newest sessions of all items.
        click, place = spread(self.item_offsets, items[row, column], sample_size)
        width = items.shape[1]
        backward = (lengths[row] - 1 - column)[click]
        key = (
            row[click] * self.sessions + self.item_sessions[place]
        ) * width + backward
        key, order = key.sort()
        pair = key // width
        first = torch.ones_like(
            pair, dtype=torch.bool
        )  # True for the first entry of a pair, that of the latest click
        first[1:] = pair[1:] != pair[:-1]
        weight = weights[row, column][click[order]]
        group = first.cumsum(0) - 1
        overlap = weight.new_zeros(int(first.sum())).index_add_(0, group, weight)
        pair = pair[first]
        backward = key[first] % width
        found = SessionPairs(
            pair // self.sessions, pair % self.sessions, overlap, backward
        )
        return found.only(first_in_list(found.row, sample_size))
