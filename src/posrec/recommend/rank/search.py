"""An exact search for session vectors that is quicker than scoring every item in full.

`ExactSearch` takes the products of vectors that are rounded to 8 bits (rounded.py), and scores only the best of them
again in full. How far rounding can move a score is bounded, so the search knows whether an item that it skipped could
be among the best. Where one could, it scores that session in full. The best items are always exact.

A model with a term for the session's own items (`nn/items/own_items.py`) also needs log Z, the log-sum-exp of the
products of all items. It is summed up from the same rounded products, with those of the items that were scored again
replaced by the exact ones. With `slack` the bound on a product's error, and R the share of Z that comes from the
rounded products, its error is at most log(1 + R (exp(slack) - 1)). Errors of many items cancel out, so it is much
smaller in practice: at most 0.0012 and 0.0002 on average, over 200 random sessions and 100,000 random item vectors of
width 200, scored by cosine with a scale of 13, where R is 99 % and the bound 0.27. docs/performance.md has the error
for items in clusters.
"""

from collections.abc import Sequence

import numpy as np

from posrec.recommend.rank.best_items import Best, Columns, Floats, Mask, Masks, best_of_all, log_sum_of, ordered
from posrec.recommend.rank.rounded import BLOCK, Rounded, RoundedItems, rounded_items, useful_threads

MORE = 44  # blocks that the exact search looks into beyond the number of items asked for
MOST_EQUAL = 4  # times as many blocks as that may hold candidates, because their scores are equal
LOWEST = np.iinfo(np.int32).min  # below every rounded score

Found = tuple[Best, float]  # the best items of a session and its log Z, which is 0 where it is not wanted


class ExactSearch:
    """Over item vectors [n, d] on the CPU; column i is item i + 1. `rounded` is the file of the same vectors in 8 bits;
    they are rounded here where it is not given. `cores` may be used for one search."""

    kind, recall = "exact", 1.0

    def __init__(self, table: Floats, rounded: bytes | None = None, cores: int = 1) -> None:
        self.table = table
        self.in_full = 0  # sessions that had to be scored in full
        content = rounded_items(table) if rounded is None else rounded
        self.rounded = None if content is None else RoundedItems(content, useful_threads(table.size, cores))

    def best(self, sessions: Floats, wanted: Sequence[int], masks: Masks | None = None) -> list[Best]:
        """The best items for session vectors [B, d], `wanted[i]` of them for session i, the best first.

        `masks[i]` says which items session i may get, None for all. There are fewer than wanted where it has fewer.
        """
        return [best for best, _ in self.found(sessions, wanted, masks, with_log_sum=False)]

    def best_and_log_sums(self, sessions: Floats, wanted: Sequence[int], masks: Masks | None = None) -> list[Found]:
        """As `best`, with each session's log Z, which is over all items."""
        return self.found(sessions, wanted, masks, with_log_sum=True)

    def found(self, sessions: Floats, wanted: Sequence[int], masks: Masks | None, with_log_sum: bool) -> list[Found]:
        masks = masks or [None] * len(sessions)
        most = max(wanted) + MORE  # blocks
        if self.rounded is None or len(self.table) < 2 * most * BLOCK:
            return [self.found_in_full(*one, with_log_sum) for one in zip(sessions, wanted, masks, strict=True)]
        scores, unit, slack = self.rounded.scores(sessions)
        bars, rows, columns = best_rounded(allowed(scores, masks), most)
        inside = columns < len(self.table)
        rows, columns = rows[inside], columns[inside]
        exact = np.einsum("cd,cd->c", self.table.take(columns, 0), sessions.take(rows, 0))
        ends = np.searchsorted(rows, np.arange(len(sessions) + 1))
        bounds = bars * unit + slack  # no item that was skipped has a higher score
        found: list[Found] = []
        for row, (session, k, mask) in enumerate(zip(sessions, wanted, masks, strict=True)):
            own = slice(ends[row], ends[row + 1])
            best = ordered(exact[own], columns[own], k)
            if not (len(best[0]) == k and bounds[row] < best[0][-1]):  # so that NaN means "not certain"
                self.in_full += 1
                found.append(self.found_in_full(session, k, mask, with_log_sum))
                continue
            log_sum = 0.0
            if with_log_sum:
                every = scores[row, : len(self.table)].astype(np.float32)
                every *= unit[row]
                every[columns[own]] = exact[own]
                log_sum = log_sum_of(every)
            found.append((best, log_sum))
        return found

    def found_in_full(self, session: Floats, k: int, mask: Mask | None, with_log_sum: bool) -> Found:
        """As `found`, for one session vector [d], from the products of all items."""
        scores = self.table @ session
        columns = None if mask is None else np.flatnonzero(mask)
        best = best_of_all(scores, k) if columns is None else ordered(scores[columns], columns, k)
        return best, log_sum_of(scores) if with_log_sum else 0.0


def best_rounded(scores: Rounded, most: int) -> tuple[Rounded, Columns, Columns]:
    """Of rounded scores [B, n'] the items that may be among the best: their rows, in order, and their columns; and the
    bars [B] that no other item's rounded score exceeds.

    A row has no items where too many would be needed: so many scores are equal, or so few items are allowed.
    """
    blocks = scores.reshape(len(scores), BLOCK, -1)  # a block is a column: quicker than neighbouring items
    highest = blocks.max(1)  # [B, n' / BLOCK]
    bars = np.partition(highest, -most, axis=1)[:, -most]
    above = highest >= bars[:, None]
    above[(bars == LOWEST) | (np.count_nonzero(above, axis=1) > MOST_EQUAL * most)] = False
    # `flatnonzero` and `divmod` take a third of the time of a `nonzero` with two axes.
    rows, block = np.divmod(np.flatnonzero(above), above.shape[1])
    chosen, place = np.divmod(np.flatnonzero(blocks[rows, :, block] >= bars[rows, None]), BLOCK)
    return bars, rows[chosen], place * above.shape[1] + block[chosen]


def allowed(scores: Rounded, masks: Masks) -> Rounded:
    """Rounded scores [B, n'] with LOWEST for all items that the masks leave out."""
    if all(mask is None for mask in masks):
        return scores
    return np.stack([row if mask is None else masked(row, mask) for row, mask in zip(scores, masks, strict=True)])


def masked(rounded: Rounded, mask: Mask) -> Rounded:
    """Rounded scores [n'] with LOWEST for all items that the mask [n] leaves out.

    LOWEST is the sign bit alone. Setting it by bits is three times quicker than `np.where`, which branches.
    """
    sign = np.full(len(rounded), LOWEST, np.int32)  # LOWEST where an item is left out, otherwise 0
    np.left_shift(~mask, 31, out=sign[: len(mask)], dtype=np.int32)
    kept = sign >> 31
    np.invert(kept, out=kept)
    kept &= rounded
    kept |= sign
    return kept
