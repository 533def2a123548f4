"""The term for a session's own items (nn/items/own_items.py, which has its equations), as a search needs it: in numpy.

A search knows the products of the best items and log Z, the log-sum-exp of the products of all items. From these follow
log p of the session's own items, and the number that turns the product of every other item into its log p.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from posrec.recommend.rank.best_items import Best, Columns, Floats, ordered

LEAST = 1e-4  # the least S / Z: rounding, or a sampled Z, must not make S negative


@dataclass(frozen=True)
class OwnItemArrays:
    """The fields of `nn.own_items.OwnItems`, of B sessions with at most R different items each."""

    items: Columns  # [B, R] item numbers; 0 in a slot without an item, whose values are ignored
    products: Floats  # [B, R] z
    raised: Floats  # [B, R] delta
    repeat: Floats  # [B, R] log(g_repeat r)
    explore: Floats  # [B] log g_explore

    def terms(self, log_sums: Sequence[float]) -> "Iterator[OwnTerm]":
        """log Z of each session -> its term."""
        log_sum = np.asarray(log_sums, np.float32)
        known = self.items > 0
        # Values of empty slots that add nothing to the sum, whatever the model has put there.
        products, raised = np.where(known, self.products, log_sum[:, None]), np.where(known, self.raised, 0)
        shares = np.exp(products - log_sum[:, None]) * np.expm1(raised)
        offsets = self.explore - log_sum - np.log(np.maximum(1 + shares.sum(1), LEAST))  # log g_explore - log S
        scores = np.logaddexp(products + raised + offsets[:, None], self.repeat)
        for row, slots in enumerate(known):
            yield OwnTerm(self.items[row, slots] - 1, scores[row, slots], float(offsets[row]))


class OwnTerm(NamedTuple):
    """The own items of one session."""

    columns: Columns  # [r]
    scores: Floats  # [r] log p
    offset: float  # log p - z of every other item

    def ranked_with(self, best: Best) -> Best:
        """The own items among the items with the best products."""
        others = ~np.isin(best[1], self.columns)
        scores = np.concatenate([self.scores, best[0][others] + np.float32(self.offset)])
        return ordered(scores, np.concatenate([self.columns, best[1][others]]), len(scores))
