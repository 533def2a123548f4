"""Losses over session vectors and item vectors, one number a sample."""

from torch import Tensor
from torch.nn import functional


def full_softmax(sessions: Tensor, items: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over all items, Eq. (11) and (12): sessions [B, d], items [n, d], targets [B] in 1..n -> [B]."""
    return functional.cross_entropy((sessions @ items.T).float(), targets - 1, reduction="none")
