"""What every search shares: the best of scores, and the term for a session's own items.

Column i is item i + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Masks = Sequence[Mask | None]

# The least S / Z: rounding, or a sampled Z, must not make S negative.
SMALLEST_SHARE_OF_SUM = 1e-4


class Best(NamedTuple):
    """The best first."""

    scores: Floats
    columns: Columns


def best_of(scores: Floats, k: int, columns: Columns | None = None) -> Best:
    """The k best of the scores of these columns, or of all items."""
    chosen = np.arange(len(scores))
    if len(scores) > 8 * k:
        chosen = np.argpartition(scores, -k)[-k:]
    chosen = chosen[np.argsort(-scores[chosen])][:k]
    return Best(scores[chosen], chosen if columns is None else columns[chosen])


def lengths_of(vectors: Floats) -> Floats:
    """[N, d] -> [N]; quicker than `np.linalg.norm`."""
    lengths: Floats = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    return lengths


def log_sum_of(scores: Floats) -> float:
    highest = scores.max()
    shifted = scores - highest
    return float(highest + np.log(np.exp(shifted, out=shifted).sum()))


class VectorSearch:
    """Finds the items whose vectors have the highest products with session vectors."""

    kind: str  # exact or faiss
    recall: float  # as of a Ranker
    table: Floats  # [n, d] the item vectors

    def search(
        self,
        sessions: Floats,
        counts: Sequence[int],
        masks: Masks | None = None,
        with_log_sums: bool = False,
    ) -> list[tuple[Best, float]]:
        """The best items for session vectors [B, d]: `counts[i]` of those that `masks[i]` allows.

        With them comes log Z, the log-sum-exp of all products; without `with_log_sums` it is 0.
        """
        raise NotImplementedError

    def products(self, session: Floats, columns: Columns) -> Floats:
        """Of one session vector [d] with the vectors of these items."""
        return self.table.take(columns, 0) @ session


@dataclass(frozen=True)
class OwnItemArrays:
    """The fields of `OwnItems` for B sessions with at most R different items each."""

    items: Columns  # [B, R] item numbers; 0 in an empty slot, whose other values are ignored
    products: Floats  # [B, R] z
    raised: Floats  # [B, R] delta
    repeat: Floats  # [B, R] log(g_repeat r)
    explore: Floats  # [B] log g_explore

    def ranked_with(
        self, best: Sequence[Best], log_sums: Sequence[float], masks: Masks
    ) -> list[Best]:
        """Each session's own items, if a mask allows them, among the best items, by log p;
        nn/items/own_items.py has the equations."""
        log_sum = np.asarray(log_sums, np.float32)
        is_item = self.items > 0
        # An empty slot gets values that add nothing to the sum, whatever the model has put there.
        products = np.where(is_item, self.products, log_sum[:, None])
        raised = np.where(is_item, self.raised, 0)
        shares = np.exp(products - log_sum[:, None]) * np.expm1(raised)
        share_of_sum = np.maximum(1 + shares.sum(1), SMALLEST_SHARE_OF_SUM)
        # log g_explore - log S, which is log p - z of all other items
        offsets = self.explore - log_sum - np.log(share_of_sum)
        own_scores = np.logaddexp(products + raised + offsets[:, None], self.repeat)
        ranked = []
        for row, ((scores, columns), mask) in enumerate(zip(best, masks, strict=True)):
            slots = is_item[row]
            if mask is not None:
                slots = slots & mask[self.items[row] - 1]
            own_columns = self.items[row, slots] - 1
            is_other = ~np.isin(columns, own_columns)
            columns = np.concatenate([own_columns, columns[is_other]])
            other_scores = scores[is_other] + offsets[row]
            scores = np.concatenate([own_scores[row, slots], other_scores])
            ranked.append(best_of(scores, len(scores), columns))
        return ranked
