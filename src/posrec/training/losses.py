"""The choice of a loss of session vectors, item vectors and targets (item numbers 1..n), one number
for each sample; and the softmax over a sample of the items."""

import torch
from torch import Tensor

from posrec.models.base import BatchVectors
from posrec.nn.items.own_items import OwnItems
from posrec.training.ranking_losses import ranking_loss
from posrec.training.settings import RANKING_LOSSES, Settings
from posrec.training.softmax import CHUNK, Loss, softmax_loss

# items
FULL_UP_TO = 200_000
CHUNKED_UP_TO = 2_000_000
NEGATIVES = 8_192


def sampled_softmax(clicks: Tensor, negatives: int = NEGATIVES) -> Loss:
    """Softmax over items sampled in proportion to their clicks, with the logQ correction (Bengio
    and Senecal, 2008).

    `clicks [N]` are the training clicks: a random click is an item sampled by popularity. The score
    of a sampled item is lowered by log(expected number of draws), so that the sum over the sample
    is an unbiased estimate of the sum over all items."""
    counts = torch.bincount(clicks.long()).clamp(min=1)
    log_draws = (counts.double() * negatives / len(clicks)).log().float()  # [n + 1]

    def loss(
        sessions: Tensor, table: Tensor, targets: Tensor, own: OwnItems | None = None
    ) -> Tensor:
        draws = torch.randint(len(clicks), (negatives,), device=clicks.device)
        drawn = clicks[draws].long()
        of_drawn = (sessions @ table[drawn - 1].T).float() - log_draws[drawn]
        # The target is not a negative. It is not sampled, so its score is not corrected.
        of_drawn = of_drawn.masked_fill(drawn == targets[:, None], -torch.inf)
        of_target = (sessions * table[targets - 1]).sum(1).float()
        if own is None:
            return torch.cat([of_target[:, None], of_drawn], 1).logsumexp(1) - of_target
        # The session's own items are in the sum as they are, and not sampled either.
        is_own = (drawn[:, None] == own.items[:, None, :]).any(2)
        of_drawn = of_drawn.masked_fill(is_own, -torch.inf)
        own_products = (sessions[:, None] * table[own.columns]).sum(2)
        own_scores = (own_products + own.raised).float()
        of_own = torch.where(own.filled, own_scores, -torch.inf)
        is_target = own.items == targets[:, None]
        of_target = of_target + torch.where(is_target, own.raised, 0).sum(1).float()
        # A target that is among the own items must not be summed twice.
        of_others = of_target[:, None].masked_fill(
            is_target.any(1, keepdim=True), -torch.inf
        )
        return torch.cat([of_others, of_own, of_drawn], 1).logsumexp(1) - of_target

    return loss


def losses_of(loss: Loss, vectors: BatchVectors, targets: Tensor) -> Tensor:
    """The loss of each sample, [B]; -log p if the model has a term for the session's own items."""
    sessions, table, own = vectors
    if own is None:
        return loss(sessions, table, targets)
    return -own.log_chances_of(targets, -loss(sessions, table, targets, own))


def loss_for(name: str, items: int) -> str:
    """The loss of this name; "auto" chooses one by the number of items."""
    if name != "auto":
        return name
    if items <= FULL_UP_TO:
        return "full"
    return "chunked" if items <= CHUNKED_UP_TO else "sampled"


def choose_loss(settings: Settings, items: int, clicks: Tensor) -> Loss:
    """The loss of the settings, for items 1..items and their training clicks."""
    name = loss_for(settings.loss, items)
    if name in RANKING_LOSSES:
        return ranking_loss(settings, items, clicks)
    if name == "sampled":
        return sampled_softmax(clicks)
    return softmax_loss(items, CHUNK if name == "chunked" else None)
