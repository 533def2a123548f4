"""SeenClicks: the clicks that a click can see, itself and those before it, by their distance; and
Returns: the other clicks on its item.

Clicks are rows of a packing, one session after the other, so the click at distance k before row t
is row t - k."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from posrec.nn.packing import Packing


@dataclass(frozen=True)
class SeenClicks:
    """What Q clicks see; W is the number of distances, at least the clicks of any session."""

    row: Tensor  # [Q]
    position: Tensor  # [Q] in the session, from the front
    seen_rows: Tensor  # [Q, W] the row at each distance; arbitrary if it is not seen
    is_seen: Tensor  # [Q, W] True if the session has a click at this distance
    is_every: bool  # whether these are all T clicks; else the last of each session
    packing: Packing

    @property
    def first(self) -> Tensor:
        """[Q] the row of the session's first click."""
        return self.row - self.position

    def at(self, values: Tensor) -> Tensor:
        """[T, ...] -> [Q, ...]: the values of these clicks."""
        return values if self.is_every else values[self.row]

    def at_seen(self, values: Tensor) -> Tensor:
        """[T, ...] -> [Q, W, ...]: the values of the seen clicks."""
        if values.dim() == 2 and values.is_floating_point():
            # The gradient of an embedding is quick on a CPU, and summed in order.
            return functional.embedding(self.seen_rows, values)
        return values[self.seen_rows]


def every_click(packing: Packing) -> SeenClicks:
    """What each of the T rows sees."""
    row = torch.arange(packing.slot_of_row.shape[0], device=packing.slot_of_row.device)
    return seen_by(row, packing, is_every=True)


def last_clicks(packing: Packing, lengths: Tensor) -> SeenClicks:
    """What the last click of each session sees."""
    return seen_by(packing.row_at(lengths - 1), packing, is_every=False)


def seen_by(row: Tensor, packing: Packing, is_every: bool) -> SeenClicks:
    slot = packing.slot_of_row[row]
    width = packing.longest
    session = slot // width
    position = slot - session * width
    if packing.used is not None:
        # A row without a slot sees itself alone.
        position = torch.where(packing.used[row], position, 0)
    distance = torch.arange(width, device=row.device)
    before = row[:, None] - distance
    # Not clamp, of which torch's compiler makes an index that it can't use.
    seen_rows = torch.where(before >= 0, before, 0)
    is_seen = distance <= position[:, None]
    return SeenClicks(row, position, seen_rows, is_seen, is_every, packing)


@dataclass(frozen=True)
class Returns:
    """Clicks on the item of each of T clicks, in the same session."""

    ahead: Tensor  # [T] the distance to the next click on it; W if there is none
    clicks: Tensor  # [T] clicks on it so far, with this one
    since: Tensor  # [T] the distance to the first click on it

    def latest_of_items(self, clicks: SeenClicks) -> Tensor:
        """[Q, W] True for the seen clicks that are the latest on their item: one for each item of
        the prefix."""
        distance = torch.arange(
            clicks.seen_rows.shape[1], device=clicks.seen_rows.device
        )
        return clicks.is_seen & (self.ahead[clicks.seen_rows] > distance)


def returns(items: Tensor, clicks: SeenClicks) -> Returns:
    """items [T] of all rows, `clicks` from `every_click`."""
    rows = items.shape[0]
    width = clicks.seen_rows.shape[1]
    distance = torch.arange(width, device=items.device)
    same = (items[clicks.seen_rows] == items[:, None]) & clicks.is_seen  # [T, W]
    back = torch.where(same & (distance > 0), distance, width).amin(1)
    # A click is the next one of the click that it returns to; those that return to none are written
    # to an extra element.
    earlier = torch.where(back < width, clicks.row - back, rows)
    ahead = torch.full((rows + 1,), width, dtype=torch.long, device=items.device)
    ahead = ahead.scatter(0, earlier, back)[:-1]
    return Returns(ahead, same.sum(1), torch.where(same, distance, 0).amax(1))
