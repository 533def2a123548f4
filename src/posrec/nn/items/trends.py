"""Trends: how much an item is clicked at a moment of the log, as columns of session and item
vectors."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

PERIODS = 15
COLUMNS = PERIODS + 1  # the last one is after the whole log
FADING = (0.03, 0.2, float("inf"))


# The log of N training clicks is cut into 15 equal periods. With the clicks on item i before period
# b begins, each faded by its age (the whole log is 1 long), and three learned weights a:
#
#     C_i(b, tau) = sum over clicks p < b N / 15 on item i of exp((p / N - b / 15) / tau)
#     trend_i(b)  = sum over tau of a_tau log(1 + C_i(b, tau))
#
# A training sample of period b is scored with trend_i(b), a served session with trend_i(15).
class Trends(nn.Module):
    counts: Tensor  # [rows, COLUMNS, 3] log(1 + C); empty before `count`, and not saved
    now: Tensor  # [rows] the trend after the whole log, in a run that was opened

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(len(FADING)))
        self.register_buffer("counts", torch.empty(0), persistent=False)
        self.register_buffer("now", torch.zeros(rows))

    def count(self, items: Tensor, offsets: Tensor) -> None:
        items = items[offsets[0] : offsets[-1]].long() - 1
        clicks = len(items)
        rows = len(self.now)
        age = torch.arange(clicks, device=items.device, dtype=torch.double) / clicks
        counts = torch.zeros(
            rows, COLUMNS, len(FADING), dtype=torch.double, device=items.device
        )
        end = 0
        for period in range(1, COLUMNS):
            start = end
            end = -(-period * clicks // PERIODS)
            for column, tau in enumerate(FADING):
                faded = torch.exp((age[start:end] - period / PERIODS) / tau)
                added = torch.bincount(items[start:end], faded, minlength=rows)
                before = counts[:, period - 1, column] * math.exp(-1 / PERIODS / tau)
                counts[:, period, column] = before + added
        self.counts = counts.log1p().float().to(self.now.device)

    def by_period(self) -> Tensor:
        """trend_i(b), [rows, COLUMNS]."""
        return self.counts.to(self.weights.dtype) @ self.weights

    def latest(self) -> Tensor:
        """trend_i after the whole log, [rows]."""
        if not len(self.counts):
            return self.now
        return self.counts[:, -1].to(self.weights.dtype) @ self.weights

    def of_items(self, when: Tensor | None) -> Tensor:
        """The columns of the item vectors, [rows, COLUMNS]; `when` as in `with_moments`.

        To recommend, the trend is spread evenly over all columns, since small values lose less when
        they are rounded to 8 bits (recommend/rank/exact_search.py)."""
        if when is not None:
            return self.by_period()
        return (self.latest() / COLUMNS)[:, None].expand(-1, COLUMNS)

    def with_moments(self, sessions: Tensor, when: Tensor | None) -> Tensor:
        """Session vectors [B, d] with their columns, [B, d + COLUMNS]. `when` [B] is the moment of
        each training sample, from 0 to 1; None to recommend."""
        if when is None:
            return functional.pad(sessions, (0, COLUMNS), value=1.0)
        period = (when * PERIODS).floor().long().clamp(max=PERIODS - 1)
        moments = functional.one_hot(period, COLUMNS).to(sessions.dtype)
        return torch.cat([sessions, moments], 1)
