"""Losses of session vectors and item vectors, one number for each sample. Targets are item numbers 1..n.

Eq. (11) and (12), the cross entropy of a softmax over all items, is computed in three ways: at once, in chunks that
never store all scores, and over a sample of the items. Losses that compare pairs of items are in `ranking_losses.py`.

On a CPU a pass over the scores of all items takes as long as computing them. So exp(score - top) is computed once, in
place, and never divided by its sum: the backward pass puts the sums and the weights of the samples into the smaller
factors of its products. In chunks, each part of the table's gradient is written directly to its place.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from posrec import kernels
from posrec.models.base import Encoded
from posrec.training.ranking_losses import RANKING_LOSSES, Negatives, comparisons, ranking_loss

if torch.cuda.is_available():
    from posrec.kernels.softmax import cross_entropy as fused_cross_entropy

# sessions [B, d], table [n or a few more, d], targets [B] -> [B]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

FULL_UP_TO, CHUNKED_UP_TO = 200_000, 2_000_000  # items
CHUNK = 65_536
NEGATIVES = 8_192
LOSSES = ("auto", "full", "chunked", "sampled", *RANKING_LOSSES)


def full_softmax(items: int) -> Loss:
    """The table's first `items` rows are items; the rows after them get a score of minus infinity."""

    def loss(sessions: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        if served_by_cpu(sessions):
            return at_once(sessions, table, targets, items)
        if kernels.serve(sessions) and kernels.precision() != "ieee":
            return fused_cross_entropy(sessions, table, targets - 1, items)
        scores = (sessions @ table.T).float()
        if len(table) > items:
            row = torch.arange(len(table), device=table.device)
            scores = scores + torch.where(row < items, 0.0, -torch.inf)
        return functional.cross_entropy(scores, targets - 1, reduction="none")

    return loss


def chunked_softmax(items: int, chunk: int = CHUNK) -> Loss:
    """The same value as `full_softmax`; scores are computed `chunk` items at a time, and again in the backward pass."""

    def normaliser(sessions: Tensor, part: Tensor) -> Tensor:
        return (sessions @ part.T).float().logsumexp(1)

    def loss(sessions: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        if served_by_cpu(sessions):
            return in_chunks(sessions, table, targets, items, chunk)
        parts = [table[start : min(start + chunk, items)] for start in range(0, items, chunk)]
        normalisers = [checkpoint(normaliser, sessions, part, use_reentrant=False) for part in parts]
        of_target = (sessions * table[targets - 1]).sum(1).float()
        return torch.stack(normalisers).logsumexp(0) - of_target

    return loss


def sampled_softmax(clicks: Tensor, negatives: int = NEGATIVES) -> Loss:
    """Softmax over items sampled in proportion to their clicks, with the logQ correction (Bengio and Senecal, 2008).

    `clicks [N]` are the training clicks: a random click is an item sampled by popularity. The score of a sampled item
    is lowered by log(expected number of draws), so that the sum over the sample is an unbiased estimate of the sum over
    all items.
    """
    counts = torch.bincount(clicks.long()).clamp(min=1)
    log_draws = (counts.double() * negatives / len(clicks)).log().float()  # [n + 1]

    def loss(sessions: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        drawn = clicks[torch.randint(len(clicks), (negatives,), device=clicks.device)].long()
        of_drawn = (sessions @ table[drawn - 1].T).float() - log_draws[drawn]
        of_drawn = of_drawn.masked_fill(drawn == targets[:, None], -torch.inf)  # the target is not a negative
        of_target = (sessions * table[targets - 1]).sum(1).float()  # the target is not sampled: no correction
        return torch.cat([of_target[:, None], of_drawn], 1).logsumexp(1) - of_target

    return loss


def losses_of(loss: Loss, encoded: Encoded, targets: Tensor) -> Tensor:
    """The loss of each sample, [B]; -log p where the model has a term for the session's own items.

    A softmax's loss is log Z - z, so it gives the normaliser Z that such a term needs, however it was computed.
    """
    sessions, table, own = encoded
    losses = loss(sessions, table, targets)
    if own is None:
        return losses
    of_target = (sessions * table[targets - 1]).sum(1).float()
    return -own.log_chances_of(targets, of_target, losses + of_target)


def loss_for(items: int) -> str:
    """The loss that `loss=auto` chooses for a catalogue of this size."""
    return "full" if items <= FULL_UP_TO else "chunked" if items <= CHUNKED_UP_TO else "sampled"


def over_all_items(name: str, items: int) -> bool:
    """Whether the loss is a softmax over all items, however it is computed."""
    return (loss_for(items) if name == "auto" else name) in ("full", "chunked")


def choose_loss(
    name: str, items: int, clicks: Tensor, negatives: Negatives | None = None, score_l2: float = 0.0
) -> Loss:
    """A loss by its name; "auto" chooses by catalogue size. `negatives` and `score_l2` are for ranking losses."""
    if name not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, not {name!r}")
    if name in RANKING_LOSSES:
        return ranking_loss(comparisons(score_l2)[name], items, clicks, negatives or Negatives())
    softmaxes: dict[str, Callable[[], Loss]] = {
        "full": lambda: full_softmax(items),
        "chunked": lambda: chunked_softmax(items),
        "sampled": lambda: sampled_softmax(clicks),
    }
    return softmaxes[loss_for(items) if name == "auto" else name]()


def served_by_cpu(sessions: Tensor) -> bool:
    """Whether to use the CPU code below, which is not for reduced precision."""
    return sessions.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def at_once(sessions: Tensor, table: Tensor, targets: Tensor, items: int) -> Tensor:
    """Losses [B]; the table's first `items` rows are items 1..items."""
    losses: Tensor = AtOnce.apply(sessions, table, targets - 1, items)  # type: ignore[no-untyped-call]
    return losses


def in_chunks(sessions: Tensor, table: Tensor, targets: Tensor, items: int, chunk: int) -> Tensor:
    """The same, with the scores of `chunk` items at a time, which are computed again in the backward pass."""
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
            probabilities = (sessions @ table[part].T).sub_(normaliser[:, None]).exp_()
            torch.mm(probabilities.T, sessions * share, out=of_table[part])
            of_sessions += probabilities @ table[part]
        of_table.index_add_(0, targets, sessions * -share)
        return (of_sessions - table[targets]) * share, of_table, None, None, None
