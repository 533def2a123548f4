"""OwnItems: a term of the score for the session's own items, which mixes repeating a click and
exploring.

    p_i = g_repeat r_i + g_explore e_i
    e_i = exp(z_i + delta_i) / S         z_i: the product of session and item vector; delta_i = 0 outside the session
    S   = Z + sum_{k in session} exp(z_k) (exp(delta_k) - 1)          Z = sum_i exp(z_i), over all items

For all other items log p_i = z_i + log g_explore - log S, in the order of the products: a search
needs Z and nothing else. Where the products of all items are at hand, delta is added to them before
they are summed, which is more exact."""

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_SHARE_OF_SUM = (
    1e-4  # the least S / Z: rounding, or a sampled Z, must not make S negative
)
LOG_OF_NO_CHANCE = -1e4  # the logarithm of a chance of 0; finite, so that gradients are
REPEAT = "clicked before"  # the name of the repeat part in explanations


@dataclass(frozen=True)
class OwnItems:
    """Of B sessions, with at most R different items each. A slot without an item has number 0; its
    values are ignored."""

    items: Tensor  # [B, R] int64 item numbers, distinct within a session
    products: Tensor | None  # [B, R] z; a search needs them, and training does not
    raised: Tensor  # [B, R] delta
    repeat: Tensor  # [B, R] log(g_repeat r)
    explore: Tensor  # [B] log g_explore

    @property
    def known(self) -> Tensor:
        """[B, R] True where a slot has an item."""
        return self.items > 0

    @property
    def repeat_chance(self) -> Tensor:
        """[B] g_repeat, the chance that the next click is on one of these items again."""
        return -self.explore.expm1()

    @property
    def repeat_shares(self) -> Tensor:
        """[B, R] r: given that a click is repeated, the chance that it is this one; 0 in slots
        without an item."""
        return (
            torch.where(self.known, self.repeat, LOG_OF_NO_CHANCE).softmax(1)
            * self.known
        )

    def log_normaliser(self, log_sum: Tensor) -> Tensor:
        """log Z [B] -> log S [B]."""
        assert self.products is not None
        shares = torch.where(
            self.known,
            (self.products - log_sum[:, None]).exp() * self.raised.expm1(),
            0,
        )
        return log_sum + (1 + shares.sum(1)).clamp(min=LEAST_SHARE_OF_SUM).log()

    @property
    def columns(self) -> Tensor:
        """[B, R] the columns of the items in scores of all items; 0 for a slot without an item."""
        return (self.items - 1).clamp(min=0)

    @property
    def amounts(self) -> Tensor:
        """[B, R] what is added to the products at `columns`: delta, and 0 for a slot without an
        item."""
        return torch.where(self.known, self.raised, 0)

    def log_chances_of(self, targets: Tensor, log_explored: Tensor) -> Tensor:
        """log p of one item a session, `targets [B]`, from log e of these items, [B]."""
        here = (
            self.items == targets[:, None]
        )  # a target is at least 1, so never in an empty slot
        repeat = torch.where(here, self.repeat, 0).sum(1) + torch.where(
            here.any(1), 0.0, LOG_OF_NO_CHANCE
        )
        return torch.logaddexp(log_explored + self.explore, repeat)

    def log_chances_of_all(self, products: Tensor) -> Tensor:
        """The products of all items, [B, n] -> log p, [B, n]."""
        raised = products.scatter_add(1, self.columns, self.amounts.to(products.dtype))
        explored = raised + (self.explore - raised.logsumexp(1))[:, None]
        of_own = explored.gather(1, self.columns)
        both = torch.stack([of_own, self.repeat.to(of_own.dtype)]).logsumexp(
            0
        )  # ONNX has no logaddexp
        change = torch.where(self.known, both - of_own, 0)
        return explored.scatter_add(
            1, self.columns, change
        )  # empty slots add 0 to some item
