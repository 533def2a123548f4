"""Items expire: from the moment in their column `expires` on, they are not recommended any more.

They may still be clicked. The clock is that of the process, in whole seconds, unless a request or a
replay of old sessions says which time it is.
"""

import time
from bisect import bisect_right
from typing import Any

import numpy as np

from posrec.data.item_times import Moments, as_moment
from posrec.recommend.rank.best_items import Mask


def clock() -> float:
    """Milliseconds since 1970 (UTC)."""
    return 1000.0 * int(time.time())


def checked_now(now: Any) -> float:
    """The moment that a request names, or that of the clock."""
    return clock() if now is None else as_moment(now)


class Lifetimes:
    """The items in the order in which they expire; `ends` [n] has NaN for those that never do."""

    def __init__(self, ends: Moments) -> None:
        self.items = len(ends)
        order = np.argsort(ends)  # NaN comes last
        self.order = order[: np.count_nonzero(~np.isnan(ends))]
        self.ends: list[float] = ends[self.order].tolist()

    def expired(self, now: float) -> int:
        """How many have expired: as long as that does not change, no item has."""
        return bisect_right(self.ends, now)

    def alive(self, expired: int) -> Mask:
        """[n] All items but those that expired first."""
        mask = np.ones(self.items, np.bool_)
        mask[self.order[:expired]] = False
        return mask
