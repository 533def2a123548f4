"""OwnItems: a term of the score for the items that are in the session already. It mixes repeating
a click and exploring."""

from dataclasses import dataclass

import torch
from torch import Tensor

# The least S / Z: rounding, or a sampled Z, must not make S negative.
LEAST_SHARE_OF_SUM = 1e-4
LOG_OF_NO_CHANCE = -1e4  # the logarithm of a chance of 0; finite, so that gradients are
REPEAT = "clicked before"  # the name of the repeat part in explanations


# With z_i, the product of session and item vector, and delta_i, which is 0 outside the session:
#
#     p_i = g_repeat r_i + g_explore e_i
#     e_i = exp(z_i + delta_i) / S
#     S   = Z + sum_{k in session} exp(z_k) (exp(delta_k) - 1)
#     Z   = sum_i exp(z_i), over all items
#
# For items outside the session log p_i = z_i + log g_explore - log S, in the order of the products:
# a search needs Z and nothing else. Where the products of all items are at hand, delta is added to
# them before they are summed, which is more exact.
@dataclass(frozen=True)
class OwnItems:
    """Of B sessions, with at most R different items each. A slot without an item has number 0; its
    values are ignored."""

    items: Tensor  # [B, R] int64 item numbers, distinct within a session
    raised: Tensor  # [B, R] delta
    repeat: Tensor  # [B, R] log(g_repeat r)
    explore: Tensor  # [B] log g_explore

    @property
    def filled(self) -> Tensor:
        """[B, R] True where a slot has an item."""
        return self.items > 0

    @property
    def repeat_chance(self) -> Tensor:
        """[B] g_repeat, the chance that the next click is on one of these items again."""
        return -self.explore.expm1()

    @property
    def repeat_shares(self) -> Tensor:
        """[B, R] r: if a click is repeated, the chance that it is this one; 0 in slots without an
        item."""
        repeat = torch.where(self.filled, self.repeat, LOG_OF_NO_CHANCE)
        return repeat.softmax(1) * self.filled

    def log_normaliser(self, products: Tensor) -> Tensor:
        """The products of all items, [B, n] -> log S [B]."""
        log_sum = products.logsumexp(1)
        own = products.gather(1, self.columns)
        added = (own - log_sum[:, None]).exp() * self.raised.expm1()
        share_of_sum = 1 + torch.where(self.filled, added, 0).sum(1)
        return log_sum + share_of_sum.clamp(min=LEAST_SHARE_OF_SUM).log()

    @property
    def columns(self) -> Tensor:
        """[B, R] the columns of the items in scores of all items; 0 for a slot without an item."""
        return (self.items - 1).clamp(min=0)

    @property
    def amounts(self) -> Tensor:
        """[B, R] what is added to the products at `columns`: delta, and 0 for a slot without an
        item."""
        return torch.where(self.filled, self.raised, 0)

    def log_chances_of(self, targets: Tensor, log_explored: Tensor) -> Tensor:
        """log p of one item a session, `targets [B]`, from log e of these items, [B]."""
        # A target is at least 1, so an empty slot is never one.
        is_target = self.items == targets[:, None]
        repeat = torch.where(is_target, self.repeat, 0).sum(1)
        repeat = repeat + torch.where(is_target.any(1), 0.0, LOG_OF_NO_CHANCE)
        return torch.logaddexp(log_explored + self.explore, repeat)

    def log_chances_of_all(self, products: Tensor) -> Tensor:
        """The products of all items, [B, n] -> log p, [B, n]."""
        raised = products.scatter_add(1, self.columns, self.amounts.to(products.dtype))
        explored = raised + (self.explore - raised.logsumexp(1))[:, None]
        own = explored.gather(1, self.columns)
        # ONNX has no logaddexp.
        mixed = torch.stack([own.to(self.repeat.dtype), self.repeat]).logsumexp(0)
        change = torch.where(self.filled, mixed - own, 0)  # empty slots add 0
        return explored.scatter_add(1, self.columns, change.to(explored.dtype))
