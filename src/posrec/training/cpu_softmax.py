"""The softmax of `losses.py` on a CPU, where going through the scores of all items takes as long as computing them.

exp(score - top) is taken once and in place, and never divided by its sum: sums and the samples' shares go into the
small factors of the backward pass's products. In chunks, the table's gradient is written part by part into its place.
"""

from typing import Any

import torch
from torch import Tensor


def served_by_cpu(sessions: Tensor) -> bool:
    """Products of rounded numbers have torch's own way."""
    return sessions.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def at_once(sessions: Tensor, table: Tensor, targets: Tensor, items: int) -> Tensor:
    """Losses [B]; the table's first `items` rows are items 1..items."""
    losses: Tensor = AtOnce.apply(sessions, table, targets - 1, items)  # type: ignore[no-untyped-call]
    return losses


def in_chunks(sessions: Tensor, table: Tensor, targets: Tensor, items: int, chunk: int) -> Tensor:
    """The same; scores of `chunk` items at a time, computed again in the backward pass."""
    losses: Tensor = InChunks.apply(sessions, table, targets - 1, items, chunk)  # type: ignore[no-untyped-call]
    return losses


class AtOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sessions: Tensor, table: Tensor, targets: Tensor, items: int) -> Tensor:
        scores = sessions @ table.T
        scores[:, items:] = -torch.inf
        of_target = scores.gather(1, targets[:, None])[:, 0]
        top = scores.amax(1, keepdim=True)
        powers = scores.sub_(top).exp_()
        sums = powers.sum(1)
        ctx.save_for_backward(sessions, table, targets, powers, sums)
        return sums.log() + top[:, 0] - of_target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        sessions, table, targets, powers, sums = ctx.saved_tensors
        share = gradients[0][:, None]
        weight = share / sums[:, None]
        of_table = powers.T @ (sessions * weight)
        of_table.index_add_(0, targets, sessions * -share)
        return (powers @ table) * weight - table[targets] * share, of_table, None, None


class InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sessions: Tensor, table: Tensor, targets: Tensor, items: int, chunk: int) -> Tensor:
        ctx.parts = [slice(start, min(start + chunk, items)) for start in range(0, items, chunk)]
        normaliser = torch.stack([(sessions @ table[part].T).logsumexp(1) for part in ctx.parts]).logsumexp(0)
        ctx.save_for_backward(sessions, table, targets, normaliser)
        ctx.items = items
        return normaliser - (sessions * table[targets]).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        sessions, table, targets, normaliser = ctx.saved_tensors
        share = gradients[0][:, None]
        of_sessions, of_table = torch.zeros_like(sessions), torch.empty_like(table)
        of_table[ctx.items :] = 0
        for part in ctx.parts:
            chances = (sessions @ table[part].T).sub_(normaliser[:, None]).exp_()
            torch.mm(chances.T, sessions * share, out=of_table[part])
            of_sessions += chances @ table[part]
        of_table.index_add_(0, targets, sessions * -share)
        return (of_sessions - table[targets]) * share, of_table, None, None, None
