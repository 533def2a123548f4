"""An exact search for session vectors that is quicker than scoring every item in full.

Vectors that are rounded to 8 bits find the best items, and only these are scored again. The error
of rounding is bounded, so the search knows whether an item that it skipped could be among the best.
If so, it scores that session in full.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError
from posrec.recommend.rank.best_items import (
    Best,
    Floats,
    Found,
    Masks,
    TableSearch,
    best_allowed,
    log_sums_of,
)
from posrec.recommend.rank.rounded_items import (
    BLOCK,
    RoundedItems,
    is_signed,
    rounded_items,
)

CACHED = 1 << 23  # numbers; larger tables do not stay in a processor's cache
MOST_THREADS = 4  # of one search; more than two were not measured
MORE_ITEMS = 64  # that are scored again, beyond those that are asked for


class ExactSearch(TableSearch):
    """`rounded` is a file of `rounded_items`, if there is one already; `cores` may be used for one
    search."""

    kind = "exact"

    def __init__(
        self,
        table: Floats,
        with_log_sums: bool = False,
        rounded: bytes | None = None,
        cores: int = 1,
    ) -> None:
        self.table = table
        self.with_log_sums = with_log_sums
        self.in_full = 0  # sessions that had to be scored in full
        self.cores = cores
        if rounded is None:
            rounded = rounded_items(table, with_log_sums)
        # Several cores read a large catalogue faster; a small one takes less than a millisecond.
        threads = min(cores, MOST_THREADS) if table.size > CACHED else 1
        self.rounded = (
            None if rounded is None else RoundedItems(rounded, table, threads)
        )

    def with_items(self, known: int, rows: Floats) -> "ExactSearch":
        table = np.concatenate([self.table[:known], rows])
        return ExactSearch(table, self.with_log_sums, cores=self.cores)

    def search(self, sessions: Floats, counts: Sequence[int], masks: Masks) -> Found:
        most = max(counts) + MORE_ITEMS
        if self.rounded is None or len(self.table) < most * BLOCK:
            return self.search_in_full(sessions, counts, masks)
        found = self.rounded.best(sessions, most, masks)
        last = found.scores[np.arange(len(sessions)), np.array(counts) - 1]
        is_certain = found.bounds < last  # False for a NaN
        log_sums = found.log_sums
        if log_sums is not None:
            is_certain &= np.isfinite(log_sums)  # exp(z) is too large for long vectors
        best = [
            Best(found.scores[row, :k], found.columns[row, :k])
            for row, k in enumerate(counts)
        ]
        for row in np.flatnonzero(~is_certain).tolist():
            self.in_full += 1
            in_full = self.search_in_full(sessions[[row]], [counts[row]], [masks[row]])
            best[row] = in_full.best[0]
            if log_sums is not None and in_full.log_sums is not None:
                log_sums[row] = in_full.log_sums[0]
        return Found(best, log_sums)

    def search_in_full(
        self, sessions: Floats, counts: Sequence[int], masks: Masks
    ) -> Found:
        """As `search`, from the products of all items."""
        scores = sessions @ self.table.T
        log_sums = log_sums_of(scores) if self.with_log_sums else None
        rows = zip(scores, counts, masks, strict=True)
        return Found([best_allowed(*row) for row in rows], log_sums)


def rounded_name() -> str:
    return "signed items" if is_signed() else "unsigned items"


def item_vectors_content(table: Floats, similar: Floats, with_log_sums: bool) -> bytes:
    """The content of items.safetensors: the vectors by whose products items are found, also
    rounded, and by whose cosines they are similar."""
    from safetensors.numpy import save

    arrays: dict[str, npt.NDArray[Any]] = {"item_vectors": table}
    rounded = rounded_items(table, with_log_sums)
    if rounded is not None:
        arrays[rounded_name()] = np.frombuffer(rounded, np.uint8)
    if not np.array_equal(table, similar):
        arrays["similarity_vectors"] = similar
    return save(arrays)


def parse_item_vectors(
    content: bytes, path: Path, items: int
) -> tuple[Floats, Floats, bytes | None]:
    """What `item_vectors_content` wrote to the file `path`: table, similar, and rounded items."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        table = arrays["item_vectors"]
        if len(table) != items:
            raise ValueError(f"it has {len(table)} items, and the run has {items}")
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} can't be read ({error}); write it again with posrec export --overwrite"
        ) from None
    similar = arrays.get("similarity_vectors", table)
    # Absent if the file was made on another kind of processor: they are rounded again.
    rounded = arrays.get(rounded_name())
    return table, similar, None if rounded is None else rounded.tobytes()
