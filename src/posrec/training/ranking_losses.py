"""Ranking losses, which compare the target's score with the scores of negative items.

All samples of a batch have the same negatives: the targets of the other samples (Hidasi et al.,
2016) and items that are drawn for each batch (Hidasi and Karatzoglou, 2018). r_i is the score of
the target, r_j that of a negative, N the number of negatives, and s_j the softmax of the negatives'
scores."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posrec.training.settings import Settings

# scores of the target [B, 1], scores of the negatives [B, N], True for negatives that count [B, N]
# -> losses [B]
Compare = Callable[[Tensor, Tensor, Tensor], Tensor]

# Below all scores, but finite: the softmax of a row without negatives must not be NaN.
LOWEST = -1e30


# BPR-Opt (Rendle et al., 2009): 1/N sum_j -log sigmoid(r_i - r_j)
def bpr(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    return mean(-logsigmoid(target - others), counts)


# TOP1 (2016, section 3.1.3): 1/N sum_j sigmoid(r_j - r_i) + sigmoid(r_j^2)
def top1(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    return mean(torch.sigmoid(others - target) + torch.sigmoid(others.square()), counts)


# TOP1-max (2018): sum_j s_j (sigmoid(r_j - r_i) + sigmoid(r_j^2))
def top1_max(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    weights = others.masked_fill(~counts, LOWEST).softmax(1) * counts
    terms = torch.sigmoid(others - target) + torch.sigmoid(others.square())
    return (weights * terms).sum(1)


# BPR-max, regularised (2018): -log sum_j s_j sigmoid(r_i - r_j) + score_l2 sum_j s_j r_j^2
def bpr_max(score_l2: float) -> Compare:
    def compare(target: Tensor, others: Tensor, counts: Tensor) -> Tensor:
        log_weights = others.masked_fill(~counts, LOWEST).log_softmax(1)
        # By logsumexp: for a target with a very low score all products would be 0.
        log_products = log_weights + logsigmoid(target - others)
        won = log_products.masked_fill(~counts, LOWEST).logsumexp(1)
        large = (log_weights.exp() * counts * others.square()).sum(1)
        return torch.where(counts.any(1), score_l2 * large - won, 0)

    return compare


def mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of each row over the entries that count; 0 if none does."""
    return (values * counts).sum(1) / counts.sum(1).clamp(min=1)


def comparisons(score_l2: float) -> dict[str, Compare]:
    return {
        "bpr": bpr,
        "top1": top1,
        "top1-max": top1_max,
        "bpr-max": bpr_max(score_l2),
    }


def ranking_loss(
    settings: Settings, items: int, clicks: Tensor
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Of session vectors, item vectors and targets [B]; negatives are drawn by training clicks."""
    compare = comparisons(settings.score_l2)[settings.loss]
    draw = drawing(items, clicks, settings.negatives, settings.sample_alpha)

    def loss(sessions: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        negatives = draw()  # [N]
        if settings.in_batch:
            negatives = torch.cat([targets, negatives])
        of_target = (sessions * table[targets - 1]).sum(1, keepdim=True).float()
        of_negatives = (sessions @ table[negatives - 1].T).float()
        # A sample's target is not its own negative.
        return compare(of_target, of_negatives, negatives != targets[:, None])

    return loss


def drawing(
    items: int, clicks: Tensor, drawn: int, alpha: float
) -> Callable[[], Tensor]:
    """A function that draws item numbers, [drawn], each with probability proportional to clicks **
    alpha. It inverts the cumulative distribution, which works inside a captured step: the CPU does
    not wait for values, and the shape is fixed."""
    counts = torch.bincount(clicks.long(), minlength=items + 1)[1 : items + 1]
    total = counts.double().pow(alpha).cumsum(0)
    total = total / total[-1]

    def draw() -> Tensor:
        uniform = torch.rand(drawn, dtype=torch.float64, device=total.device)
        return torch.searchsorted(total, uniform, right=True).clamp(max=items - 1) + 1

    return draw
