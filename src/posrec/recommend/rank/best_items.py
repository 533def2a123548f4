"""What every way of finding items shares: the best of scores, and the term for own items.

Column i is item i + 1. nn/items/own_items.py has the equations of the term. From the products of
the best items and log Z, the log-sum-exp of the products of all items, follow log p of the
session's own items and the number that turns every other product into its log p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Masks = Sequence[Mask | None]
Best = tuple[Floats, Columns]  # scores and columns, the best first

SMALLEST_SHARE_OF_SUM = (
    1e-4  # the least S / Z: rounding, or a sampled Z, must not make S negative
)


def best_of(scores: Floats, k: int, columns: Columns | None = None) -> Best:
    """The k best, or all where there are fewer; `columns` are those of the scores."""
    chosen = (
        np.argpartition(scores, -k)[-k:]
        if len(scores) > 8 * k
        else np.arange(len(scores))
    )
    chosen = chosen[np.argsort(-scores[chosen])][:k]
    return scores[chosen], chosen if columns is None else columns[chosen]


def log_sum_of(scores: Floats) -> float:
    highest = scores.max()
    shifted = scores - highest
    return float(highest + np.log(np.exp(shifted, out=shifted).sum()))


class VectorSearch:
    """A search for the items whose vectors `table [n, d]` have the highest products with session
    vectors."""

    kind: str  # exact or faiss
    recall: float  # the share of the exact best 20 items that is found
    table: Floats

    def search(
        self,
        sessions: Floats,
        wanted: Sequence[int],
        masks: Masks | None = None,
        with_log_sums: bool = False,
    ) -> list[tuple[Best, float]]:
        """The best items for session vectors [B, d], and each session's log Z over all items.

        Session i gets `wanted[i]` items, the best first, of those that `masks[i]` allows. log Z is
        0 where it is not wanted.
        """
        raise NotImplementedError

    def products(self, session: Floats, columns: Columns) -> Floats:
        """Of one session vector [d] with these items' vectors."""
        return self.table.take(columns, 0) @ session


@dataclass(frozen=True)
class OwnItemArrays:
    """The fields of `nn.own_items.OwnItems`, of B sessions with at most R different items each."""

    items: Columns  # [B, R] item numbers; 0 in a slot without an item, whose values are ignored
    products: Floats  # [B, R] z
    raised: Floats  # [B, R] delta
    repeat: Floats  # [B, R] log(g_repeat r)
    explore: Floats  # [B] log g_explore

    def ranked_with(
        self, best: Sequence[Best], log_sums: Sequence[float], masks: Masks
    ) -> list[Best]:
        """Each session's allowed own items among those of the best products, by log p."""
        log_sum = np.asarray(log_sums, np.float32)
        known = self.items > 0
        # Values of empty slots that add nothing to the sum, whatever the model has put there.
        products = np.where(known, self.products, log_sum[:, None])
        raised = np.where(known, self.raised, 0)
        shares = np.exp(products - log_sum[:, None]) * np.expm1(raised)
        share_of_sum = np.maximum(1 + shares.sum(1), SMALLEST_SHARE_OF_SUM)
        offsets = (
            self.explore - log_sum - np.log(share_of_sum)
        )  # log g_explore - log S: log p - z of every other item
        own_scores = np.logaddexp(products + raised + offsets[:, None], self.repeat)
        ranked = []
        for row, ((scores, columns), mask) in enumerate(zip(best, masks, strict=True)):
            slots = (
                known[row] if mask is None else known[row] & mask[self.items[row] - 1]
            )
            own = self.items[row, slots] - 1
            others = ~np.isin(columns, own)
            scores = np.concatenate(
                [own_scores[row, slots], scores[others] + offsets[row]]
            )
            ranked.append(
                best_of(scores, len(scores), np.concatenate([own, columns[others]]))
            )
        return ranked
