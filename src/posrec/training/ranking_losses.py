"""Ranking losses: the target's score against the scores of some other items, one number a sample.

All samples of a batch are held against the same items: the targets of the other samples (Hidasi et al., 2016) and items
drawn anew for every batch (Hidasi and Karatzoglou, 2018). r_i is the score of the target, r_j of a negative, N how many
negatives there are, and s_j the softmax of the negatives' scores.

    bpr        1/N sum_j -log sigmoid(r_i - r_j)                               BPR-Opt (Rendle et al., 2009)
    top1       1/N sum_j sigmoid(r_j - r_i) + sigmoid(r_j^2)                   TOP1 (2016, section 3.1.3)
    top1-max   sum_j s_j (sigmoid(r_j - r_i) + sigmoid(r_j^2))                 TOP1-max (2018)
    bpr-max    -log sum_j s_j sigmoid(r_i - r_j) + score_l2 sum_j s_j r_j^2    BPR-max, regularised (2018)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

# of the target [B, 1], of the negatives [B, N], True where a negative counts [B, N] -> [B]
Comparison = Callable[[Tensor, Tensor, Tensor], Tensor]

LOWEST = -1e30  # a score that loses to all others, and finite: a row of nothing else must not become NaN


@dataclass(frozen=True)
class Negatives:
    """Which items a target is held against."""

    drawn: int = 2048  # items for every batch, drawn with a chance of clicks ** alpha
    alpha: float = 0.0  # 0: all alike, 1: by popularity
    in_batch: bool = True  # and the targets of the batch's other samples


def bpr(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    return mean(-logsigmoid(target - others), counts)


def top1(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    return mean(torch.sigmoid(others - target) + torch.sigmoid(others.square()), counts)


def top1_max(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    weights = others.masked_fill(~counts, LOWEST).softmax(1) * counts
    return (weights * (torch.sigmoid(others - target) + torch.sigmoid(others.square()))).sum(1)


def bpr_max(score_l2: float) -> Comparison:
    def compare(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
        log_weights = others.masked_fill(~counts, LOWEST).log_softmax(1)
        # log sum_j s_j sigmoid(r_i - r_j) in logarithms throughout: where the target is far behind, s * sigmoid is 0
        won = (log_weights + logsigmoid(target - others)).masked_fill(~counts, LOWEST).logsumexp(1)
        large = (log_weights.exp() * counts * others.square()).sum(1)
        return torch.where(counts.any(1), score_l2 * large - won, 0)

    return compare


def mean(values: Tensor, counts: Tensor) -> Tensor:
    """Of each row, over what counts; 0 where nothing does."""
    return (values * counts).sum(1) / counts.sum(1).clamp(min=1)


def comparisons(score_l2: float) -> dict[str, Comparison]:
    return {"bpr": bpr, "top1": top1, "top1-max": top1_max, "bpr-max": bpr_max(score_l2)}


RANKING_LOSSES = tuple(comparisons(0.0))


def ranking_loss(
    compare: Comparison, items: int, clicks: Tensor, negatives: Negatives
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`clicks` are the training clicks, to draw by. The loss takes session vectors, item vectors and targets [B]."""
    draw = drawing(items, clicks, negatives.drawn, negatives.alpha)

    def loss(sessions: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        chosen = torch.cat([targets, draw()]) if negatives.in_batch else draw()  # [N]
        of_target = (sessions * table[targets - 1]).sum(1, keepdim=True).float()
        of_chosen = (sessions @ table[chosen - 1].T).float()
        return compare(of_target, of_chosen, chosen != targets[:, None])  # a target is no negative of its own sample

    return loss


def drawing(items: int, clicks: Tensor, drawn: int, alpha: float) -> Callable[[], Tensor]:
    """A function that draws item numbers, [drawn], each with a chance in proportion to clicks ** alpha.

    Equal steps through a running total are unequal steps through the items. Nothing is read back and the shape is
    fixed, so a captured step can draw.
    """
    counts = torch.bincount(clicks.long(), minlength=items + 1)[1 : items + 1]
    total = counts.double().pow(alpha).cumsum(0)
    total = total / total[-1]

    def draw() -> Tensor:
        where = torch.rand(drawn, dtype=torch.float64, device=total.device)
        return torch.searchsorted(total, where, right=True).clamp(max=items - 1) + 1

    return draw
