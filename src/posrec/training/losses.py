"""Losses over session vectors and item vectors, one number a sample. Targets are item numbers 1..n.

Eq. (11) and (12), the cross entropy of a softmax over all items, three ways: at once, in chunks that never hold all
scores, and against a sample of the items.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# sessions [B, d], items [n, d], targets [B] -> [B]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

FULL_UP_TO, CHUNKED_UP_TO = 200_000, 2_000_000  # items
CHUNK = 65_536
NEGATIVES = 8_192


def full_softmax(sessions: Tensor, items: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy((sessions @ items.T).float(), targets - 1, reduction="none")


def chunked_softmax(sessions: Tensor, items: Tensor, targets: Tensor, chunk: int = CHUNK) -> Tensor:
    """The same value as `full_softmax`; scores are computed `chunk` items at a time, and again in the backward pass."""

    def normaliser(sessions: Tensor, part: Tensor) -> Tensor:
        return (sessions @ part.T).float().logsumexp(1)

    parts = [items[start : start + chunk] for start in range(0, len(items), chunk)]
    normalisers = [checkpoint(normaliser, sessions, part, use_reentrant=False) for part in parts]
    of_target = (sessions * items[targets - 1]).sum(1).float()
    return torch.stack(normalisers).logsumexp(0) - of_target


def sampled_softmax(clicks: Tensor, negatives: int = NEGATIVES) -> Loss:
    """Softmax against items drawn as often as they are clicked, with the logQ correction (Bengio and Senecal, 2008).

    `clicks [N]` are the training clicks: one drawn at random is an item drawn by popularity. The score of a drawn item
    is lowered by log(expected number of draws), so that the sum over the drawn estimates the sum over all without bias.
    """
    counts = torch.bincount(clicks.long()).clamp(min=1)
    log_draws = (counts.double() * negatives / len(clicks)).log().float()  # [n + 1]

    def loss(sessions: Tensor, items: Tensor, targets: Tensor) -> Tensor:
        drawn = clicks[torch.randint(len(clicks), (negatives,), device=clicks.device)].long()
        of_drawn = (sessions @ items[drawn - 1].T).float() - log_draws[drawn]
        of_drawn = of_drawn.masked_fill(drawn == targets[:, None], -torch.inf)  # a hit is no negative
        of_target = (sessions * items[targets - 1]).sum(1).float()  # always there, so nothing to correct
        return torch.cat([of_target[:, None], of_drawn], 1).logsumexp(1) - of_target

    return loss


def choose_loss(name: str, items: int, clicks: Tensor) -> Loss:
    """By name, or by the size of the catalogue ("auto")."""
    if name == "auto":
        name = "full" if items <= FULL_UP_TO else "chunked" if items <= CHUNKED_UP_TO else "sampled"
    losses: dict[str, Callable[[], Loss]] = {
        "full": lambda: full_softmax,
        "chunked": lambda: chunked_softmax,
        "sampled": lambda: sampled_softmax(clicks),
    }
    if name not in losses:
        raise ValueError(f"loss={name!r} is not known; choose one of auto {' '.join(losses)}")
    return losses[name]()
