"""Passes: what a causal model reads of a dataset, each session once.

A pass reads a session from its first click on and predicts the click after each. A session of more
than `longest` + 1 clicks has several passes, which begin at multiples of `stride` (`first_read`)
with clicks whose samples belong to the pass before.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset
from posrec.nn.batch import PADDING, SessionBatch


@dataclass(frozen=True)
class Passes:
    """P passes, in the order of the sessions."""

    start: Tensor  # [P] the index of its first click in the dataset's `items`
    clicks: Tensor  # [P] how many clicks it reads
    skipped: Tensor  # [P] after so many of them its own samples begin

    def __len__(self) -> int:
        return len(self.start)


def passes_over(dataset: SessionDataset, longest: int, stride: int) -> Passes:
    """The passes over all sessions that have samples.

    >>> one = SessionDataset(torch.arange(1, 8), torch.tensor([0, 7]), torch.tensor([0]))
    >>> found = passes_over(one, longest=4, stride=2)
    >>> found.start.tolist(), found.clicks.tolist(), found.skipped.tolist()
    ([0, 2], [4, 4], [0, 2])
    """
    read = dataset.lengths - 1  # [sessions] clicks that have a next one
    windows = torch.where(
        read > 0, 1 + ((read - longest).clamp(min=0) + stride - 1) // stride, 0
    )
    session = torch.repeat_interleave(
        torch.arange(dataset.sessions, device=read.device), windows
    )
    number = (
        torch.arange(len(session), device=read.device)
        - (windows.cumsum(0) - windows)[session]
    )
    begin = number * stride
    clicks = (read[session] - begin).clamp(max=longest)
    skipped = torch.where(number > 0, longest - stride, 0)
    return Passes(dataset.offsets[:-1][session] + begin, clicks, skipped)


def cut_into_batches(clicks: Tensor, most: int) -> Tensor:
    """Where each batch ends: as many passes of `clicks` [P] as have at most `most` together, at
    least one.

    >>> cut_into_batches(torch.tensor([2, 2, 3, 9, 1]), most=5).tolist()
    [2, 3, 4, 5]
    """
    through = clicks.cpu().cumsum(0)
    ends = []
    end = 0
    while end < len(through):
        full = most + (int(through[end - 1]) if end else 0)
        end = max(end + 1, int(torch.searchsorted(through, full, right=True)))
        ends.append(end)
    return torch.tensor(ends, dtype=torch.int64)


def collate_passes(
    dataset: SessionDataset, start: Tensor, clicks: Tensor, width: int
) -> SessionBatch:
    """Passes of so many clicks, [B] each, as a batch of this width; tensor operations alone."""
    column = torch.arange(width, device=start.device)
    inside = column < clicks[:, None]
    click = torch.where(inside, start[:, None] + column, start[:, None])
    return SessionBatch(
        torch.where(inside, dataset.items[click], PADDING).long(),
        clicks,
        every_click=True,
    )
