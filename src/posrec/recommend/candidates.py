"""The items that may be recommended, and the ones that a request leaves out."""

from functools import cached_property

import numpy as np

from posrec.recommend.best_items import Columns, Mask

FEW = 16  # at most one item in so many is few: scoring them one by one is quicker than a search through all


class Candidates:
    """Some of n items, given as a mask [n] or as sorted columns; the other form is derived when it is needed."""

    def __init__(self, items: int, mask: Mask | None = None, columns: Columns | None = None) -> None:
        self.items, self.given_mask, self.given_columns = items, mask, columns

    @cached_property
    def mask(self) -> Mask:
        """[n] True for items that may be recommended."""
        if self.given_mask is not None:
            return self.given_mask
        mask = np.zeros(self.items, dtype=np.bool_)
        mask[self.given_columns] = True
        return mask

    @cached_property
    def count(self) -> int:
        return len(self.given_columns) if self.given_columns is not None else int(np.count_nonzero(self.mask))

    @property
    def columns(self) -> Columns:
        return self.given_columns if self.given_columns is not None else np.flatnonzero(self.mask)

    @cached_property
    def few(self) -> Columns | None:
        """The columns, where they are few."""
        return self.columns if self.count * FEW <= self.items or self.count <= FEW else None

    @cached_property
    def excluded(self) -> Mask:
        """[n] True for items that must not be recommended."""
        return ~self.mask

    def contains(self, number: int) -> bool:
        return bool(self.mask[number - 1])

    def and_also(self, other: "Candidates | None") -> "Candidates":
        """The items that are in both."""
        if other is None:
            return self
        for one, another in ((self, other), (other, self)):
            if one.given_columns is not None:
                return Candidates(self.items, columns=one.given_columns[another.mask[one.given_columns]])
        return Candidates(self.items, self.mask & other.mask)


def only(items: int, numbers: list[int]) -> Candidates:
    """The items with these numbers."""
    return Candidates(items, columns=np.unique(np.array(numbers, dtype=np.int64)) - 1)


def all_but(items: int, numbers: list[int]) -> Candidates:
    """All items but those with these numbers."""
    mask = np.ones(items, dtype=np.bool_)
    mask[np.array(numbers, dtype=np.int64) - 1] = False
    return Candidates(items, mask)
