"""Training sessions as an index for nearest neighbours: the items of a session, and the sessions of an item.

Sessions are numbered from the newest, 0, so the newest of any list of sessions are its first. A session is a set of
items, each at the position of its latest click.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posrec.nn.counting import first_in_list, offsets_of, spread

ROWS_AT_ONCE = 128  # bounds the memory for candidates, and keeps them in the cache


@dataclass(frozen=True)
class Candidates:
    """Pairs of a session asked about and a training session that shares an item with it, by row, newest first."""

    row: Tensor  # [G] which session of the batch
    session: Tensor  # [G] which training session
    overlap: Tensor  # [G] the summed weights of the items they share
    backward: Tensor  # [G] how far the latest click on a shared item is from the end of the batch's session

    def only(self, kept: Tensor) -> "Candidates":
        return Candidates(self.row[kept], self.session[kept], self.overlap[kept], self.backward[kept])


class SessionIndex(nn.Module):
    """Buffers are empty until `count` has seen the sessions."""

    session_offsets: Tensor  # [S + 1] int64
    session_items: Tensor  # [E] int32, distinct within a session
    positions: Tensor  # [E] int32, of the item's latest click in the session, from 0
    item_offsets: Tensor  # [items + 2] int64; list 0 stays empty, items begin with 1
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
        """`items [N]`: every training click; `offsets [S + 1]`: where in them each session begins, oldest first."""
        items, offsets = items[offsets[0] : offsets[-1]].long(), offsets - offsets[0]
        number = torch.arange(len(offsets) - 1, device=items.device)
        session = torch.repeat_interleave(number.flip(0), offsets.diff())  # [N]
        position = torch.arange(len(items), device=items.device) - torch.repeat_interleave(offsets[:-1], offsets.diff())
        pair, order = (session * (self.items + 1) + items).sort(stable=True)
        latest = torch.ones_like(pair, dtype=torch.bool)  # of several clicks on an item in a session, the last
        latest[:-1] = pair[1:] != pair[:-1]
        session, item = pair[latest] // (self.items + 1), pair[latest] % (self.items + 1)
        self.session_offsets = offsets_of(session, len(offsets) - 1)
        self.session_items, self.positions = item.int(), position[order][latest].int()
        item, order = item.sort(stable=True)
        self.item_offsets = offsets_of(item, self.items + 1)
        self.item_sessions = session[order].int()

    def latest_clicks(self, items: Tensor, lengths: Tensor) -> Tensor:
        """[B, L] True at the latest click on each known item of a session."""
        inside = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
        again = ((items[:, :, None] == items[:, None, :]) & inside[:, None, :]).triu(1).any(2)
        return inside & ~again & (items >= 1) & (items <= self.items)

    def candidates(self, items: Tensor, lengths: Tensor, weights: Tensor, sample_size: int) -> Candidates:
        """The `sample_size` newest training sessions that share an item with each session.

        `items [B, L]` padded on the right, `lengths [B]`, `weights [B, L]` of the clicks; an item clicked several
        times has the weight of its latest click.
        """
        row, column = self.latest_clicks(items, lengths).nonzero(as_tuple=True)  # [C]
        # No session past an item's own newest can be among the newest of all items together.
        click, place = spread(self.item_offsets, items[row, column], sample_size)
        width = items.shape[1]
        backward = (lengths[row] - 1 - column)[click]
        key = (row[click] * self.sessions + self.item_sessions[place]) * width + backward
        key, order = key.sort()
        pair = key // width
        first = torch.ones_like(pair, dtype=torch.bool)  # of a pair, the latest click comes first
        first[1:] = pair[1:] != pair[:-1]
        weight = weights[row, column][click[order]]
        group = first.cumsum(0) - 1
        overlap = weight.new_zeros(int(first.sum())).index_add_(0, group, weight)
        pair, backward = pair[first], key[first] % width
        found = Candidates(pair // self.sessions, pair % self.sessions, overlap, backward)
        return found.only(first_in_list(found.row, sample_size))


def nearest(row: Tensor, similarity: Tensor, k: int) -> Tensor:
    """Which of the pairs are among the `k` most similar of their row; of equals those that come first.

    `row [G]` is sorted, `similarity [G]` is float32 and not negative. Gives indices, by row.
    """
    # The bits of such floats, read as whole numbers, are in the floats' order: one sort does for both keys.
    order = ((row << 32) - similarity.view(torch.int32)).sort(stable=True).indices
    return order[first_in_list(row, k)]


def in_parts(rest: Tensor, batch: Any, add_scores: Callable[[Any, Tensor], None]) -> Tensor:
    """The scores [B, n] of a SessionBatch: `rest [n]`, and what `add_scores` adds to a few rows at a time."""
    scores = rest.repeat(len(batch.lengths), 1)
    for start in range(0, len(scores), ROWS_AT_ONCE):
        end = start + ROWS_AT_ONCE
        add_scores(batch.rows(start, end), scores[start:end])
    return scores
