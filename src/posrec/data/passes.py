"""Passes: what a causal model reads of a dataset, each session once.

A pass reads a session from its first click on and predicts the click after each. A session of more
than `longest` + 1 clicks has several passes, which begin at multiples of `stride` (`first_read`)
with clicks whose samples belong to the pass before.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset, padded
from posrec.nn.batch import SessionBatch


@dataclass(frozen=True)
class Passes:
    """P passes, in the order of the sessions."""

    start: Tensor  # [P] the index of its first click in the dataset's `items`
    clicks: Tensor  # [P] how many clicks it reads
    skipped: Tensor  # [P] how many of these belong to samples of the pass before

    def __len__(self) -> int:
        return len(self.start)


def passes_over(dataset: SessionDataset, longest: int, stride: int) -> Passes:
    """
    >>> dataset = SessionDataset(torch.arange(1, 8), torch.tensor([0, 7]), torch.tensor([0]))
    >>> passes = passes_over(dataset, longest=4, stride=2)
    >>> passes.start.tolist(), passes.clicks.tolist(), passes.skipped.tolist()
    ([0, 2], [4, 4], [0, 2])
    """
    device = dataset.offsets.device
    read = dataset.lengths - 1  # [sessions] clicks that have a next one
    more = ((read - longest).clamp(min=0) + stride - 1) // stride
    windows = torch.where(read > 0, 1 + more, 0)  # [sessions] passes over each
    windows_before = windows.cumsum(0) - windows
    sessions = torch.arange(dataset.sessions, device=device)
    session = torch.repeat_interleave(sessions, windows)  # [P]
    number = torch.arange(len(session), device=device) - windows_before[session]
    begin = number * stride
    clicks = (read[session] - begin).clamp(max=longest)
    skipped = torch.where(number > 0, longest - stride, 0)
    return Passes(dataset.offsets[:-1][session] + begin, clicks, skipped)


def cut_into_batches(clicks: Tensor, most: int) -> Tensor:
    """Where each batch ends: passes of `clicks` [P], at least one and at most `most` clicks in all.

    >>> cut_into_batches(torch.tensor([2, 2, 3, 9, 1]), most=5).tolist()
    [2, 3, 4, 5]
    """
    clicks_until = clicks.cpu().cumsum(0)
    ends = []
    end = 0
    before = 0
    while end < len(clicks):
        fitting = torch.searchsorted(clicks_until, before + most, right=True)
        end = max(end + 1, int(fitting))
        before = int(clicks_until[end - 1])
        ends.append(end)
    return torch.tensor(ends, dtype=torch.int64)


def collate_passes(
    dataset: SessionDataset, start: Tensor, clicks: Tensor, width: int
) -> SessionBatch:
    """Passes, by their `start` [B] and `clicks` [B], as a batch; tensor operations alone."""
    items = padded(dataset, start, clicks, width)
    return SessionBatch(items, clicks, every_click=True)
