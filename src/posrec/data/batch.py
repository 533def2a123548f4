"""SessionBatch and the one way to make it: training, evaluation, scoring and serving all `collate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posrec.data.sessions import SessionDataset

if TYPE_CHECKING:
    from posrec.data.graph import SessionGraph
    from posrec.layers.packing import Packing

PADDING = 0


@dataclass(frozen=True)
class SessionBatch:
    """`items [B, L]` int64, padded with 0 on the right; `lengths [B]`; `targets [B]`, or None when asking for the next.

    Positions come from `lengths`, never from the array's edge: adding padding changes no score.
    """

    items: Tensor
    lengths: Tensor
    targets: Tensor | None = None
    graph: "SessionGraph | None" = None  # where it was built already, for many batches at once
    packing: "Packing | None" = None  # of the graph's nodes, or of the clicks where there is no graph; so too
    capacity: int | None = None  # an upper bound on the clicks in all sessions, where shapes must not follow the data
    longest: int | None = None  # an upper bound on the clicks in a session, where L is not known beforehand (export)

    @classmethod
    def of(cls, sessions: Sequence[Sequence[int]], max_length: int | None = None) -> "SessionBatch":
        """A batch of sessions in hand; of each the latest `max_length` clicks.

        >>> SessionBatch.of([[5, 3], [7]]).items.tolist()
        [[5, 3], [7, 0]]
        """
        if not sessions or not all(sessions):
            raise ValueError("a batch needs at least one session, and each session at least one click")
        kept = [list(session if max_length is None else session[-max_length:]) for session in sessions]
        longest = max(map(len, kept))
        padded = [session + [PADDING] * (longest - len(session)) for session in kept]
        return cls(torch.tensor(padded), torch.tensor([len(session) for session in kept]))

    @property
    def mask(self) -> Tensor:
        """[B, L] True where there is a click."""
        return torch.arange(self.items.shape[1], device=self.items.device) < self.lengths[:, None]

    def trimmed(self) -> "SessionBatch":
        """Without the columns past the longest session. Reads a value back, so it is for the CPU."""
        return SessionBatch(self.items[:, : int(self.lengths.max())], self.lengths, self.targets)

    def rows(self, start: int, end: int) -> "SessionBatch":
        """Sessions start..end-1; views."""
        targets = None if self.targets is None else self.targets[start:end]
        graph = None if self.graph is None else self.graph.rows(start, end)
        of_rows = (self.items[start:end], self.lengths[start:end], targets, graph)
        return SessionBatch(*of_rows, capacity=self.capacity, longest=self.longest)

    def to(self, device: torch.device | str) -> "SessionBatch":
        targets = None if self.targets is None else self.targets.to(device)
        return SessionBatch(self.items.to(device), self.lengths.to(device), targets)


def collate(dataset: SessionDataset, sample_ids: Tensor, max_length: int) -> SessionBatch:
    """The samples `sample_ids [B]` as a batch of width `max_length`: of each the latest clicks, and the target.

    Tensor operations alone, on the dataset's device, with no value read back: the same batch on CPU and GPU, and a step
    that contains it can be captured. See `sessions.py` for how samples are counted.
    """
    sample_ids = sample_ids.to(dataset.offsets)
    session = torch.searchsorted(dataset.sample_offsets, sample_ids, right=True) - 1  # [B]
    target = dataset.offsets[0] + sample_ids + session + 1  # [B] index of the target click
    lengths = (target - dataset.offsets[session]).clamp(max=max_length)  # [B]
    column = torch.arange(max_length, device=lengths.device)  # [L]
    inside = column < lengths[:, None]  # [B, L]
    click = torch.where(inside, (target - lengths)[:, None] + column, target[:, None])  # [B, L], always a real click
    items = torch.where(inside, dataset.items[click], PADDING).long()
    return SessionBatch(items, lengths, dataset.items[target].long())
