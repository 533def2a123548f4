"""The best of scores, as arrays: what every way of finding items shares. Column i is item i + 1."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Masks = Sequence[Mask | None]
Best = tuple[Floats, Columns]  # scores and columns, the best first


def ordered(scores: Floats, columns: Columns, k: int) -> Best:
    """The k best, or all where there are fewer."""
    if len(scores) > 8 * k:
        best = np.argpartition(scores, -k)[-k:]
        scores, columns = scores[best], columns[best]
    order = np.argsort(-scores)[:k]
    return scores[order], columns[order]


def best_of_all(scores: Floats, k: int) -> Best:
    """The k best of the scores [n] of all items."""
    return ordered(scores, np.arange(len(scores)), k)


def best_of_some(table: Floats, session: Floats, columns: Columns, k: int) -> Best:
    """The k best of these items alone, for one session vector [d]."""
    return ordered(products(table, session, columns), columns, k)


def products(table: Floats, session: Floats, columns: Columns) -> Floats:
    """The products of one session vector [d] with these items' vectors."""
    return table.take(columns, 0) @ session


def log_sum_of(scores: Floats) -> float:
    """log sum exp(scores)"""
    highest = scores.max()
    shifted = scores - highest
    return float(highest + np.log(np.exp(shifted, out=shifted).sum()))
