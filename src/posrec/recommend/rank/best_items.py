"""What every search shares: the best of scores, and the term for a session's own items.

Column i is item i + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    if len(scores) > 8 * k:
        chosen = np.argpartition(scores, -k)[-k:]
        chosen = chosen[np.argsort(-scores[chosen])]
    else:
        chosen = np.argsort(-scores)[:k]
    return Best(scores[chosen], chosen if columns is None else columns[chosen])


def best_allowed(scores: Floats, k: int, mask: Mask | None) -> Best:
    """The k best of the scores of all items that the mask allows."""
    if mask is None:
        return best_of(scores, k)
    return best_of(scores[mask], k, np.flatnonzero(mask))


def lengths_of(vectors: Floats) -> Floats:
    """[N, d] -> [N]; quicker than `np.linalg.norm`."""
    lengths: Floats = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    return lengths


def log_sums_of(scores: Floats) -> Floats:
    """[B, n] -> [B] the log-sum-exp of each row."""
    highest = scores.max(1, keepdims=True)
    sums = np.exp(scores - highest).sum(1)
    log_sums: Floats = highest[:, 0] + np.log(sums)
    return log_sums


class Found(NamedTuple):
    """What a search finds for B sessions."""

    best: list[Best]
    # [B] log Z, the log-sum-exp of the products with all items, if the model needs it
    log_sums: Floats | None = None


class Search:
    """Finds the items whose vectors have the highest products with session vectors."""

    kind: str  # exact, faiss or all scores
    recall = 1.0  # the share of the exact best 20 items that is found
    at_once = 64  # sessions; more would not be quicker

    def search(self, sessions: Floats, counts: Sequence[int], masks: Masks) -> Found:
        """The best items for session vectors [B, d]: `counts[i]` of those that `masks[i]`
        allows."""
        raise NotImplementedError

    def products(self, sessions: Floats, columns: Columns) -> Floats:
        """Of session vectors [B, d] with the vectors of items [B, R] -> [B, R]."""
        raise NotImplementedError


class TableSearch(Search):
    """A search with the item vectors in memory."""

    table: Floats  # [n, d]

    def with_items(self, known: int, rows: Floats) -> "TableSearch":
        """A search for the first `known` items and, after them, those of these rows [m, d]."""
        raise NotImplementedError

    def products(self, sessions: Floats, columns: Columns) -> Floats:
        products: Floats = np.einsum("brd,bd->br", self.table[columns], sessions)
        return products


@dataclass(frozen=True)
class OwnItemArrays:
    """The fields of `OwnItems` for B sessions with at most R different items each."""

    items: Columns  # [B, R] item numbers; 0 in an empty slot, whose other values are ignored
    raised: Floats  # [B, R] delta
    repeat: Floats  # [B, R] log(g_repeat r)
    explore: Floats  # [B] log g_explore

    @property
    def columns(self) -> Columns:
        """[B, R]; 0 for an empty slot."""
        return np.maximum(self.items - 1, 0)

    def log_chances(self, products: Floats, log_sums: Floats) -> tuple[Floats, Floats]:
        """log p of these items [B, R], from z [B, R] and log Z [B]; and what is added to the
        products of all other items, [B]. nn/items/own_items.py has the equations."""
        raised = np.where(self.items > 0, self.raised, 0)  # an empty slot adds nothing
        shares = np.exp(products - log_sums[:, None]) * np.expm1(raised)
        share_of_sum = np.maximum(1 + shares.sum(1), SMALLEST_SHARE_OF_SUM)
        # log g_explore - log S
        added = self.explore - log_sums - np.log(share_of_sum)
        return np.logaddexp(products + raised + added[:, None], self.repeat), added


def joined(parts: Sequence[OwnItemArrays], rows: Columns) -> OwnItemArrays:
    """The `rows` of all parts together, filled up with empty slots."""
    most = max(part.items.shape[1] for part in parts)

    def wide(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        filled = np.zeros((len(rows), most), arrays[0].dtype)
        end = 0
        for array in arrays:
            start = end
            end += len(array)
            filled[start:end, : array.shape[1]] = array
        return filled[rows]

    explore = np.concatenate([part.explore for part in parts])[rows]
    return OwnItemArrays(wide("items"), wide("raised"), wide("repeat"), explore)
