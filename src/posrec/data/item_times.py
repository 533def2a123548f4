"""Times in the columns of items: when an item was created, and when it expires."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError

if TYPE_CHECKING:  # polars is imported where there are times
    import polars as pl

CREATED = "created"
EXPIRES = "expires"

Moments = npt.NDArray[np.float64]  # milliseconds since 1970 (UTC), NaN for none


class ItemTimes(TypedDict, total=False):
    """The columns of an items file to read as `created` and `expires`."""

    created_column: str | None
    expires_column: str | None


def item_times(
    items: Any, created_column: str | None, expires_column: str | None
) -> ItemTimes:
    if items is None and (created_column or expires_column):
        raise InputError("--created-column and --expires-column are columns of --items")
    return {"created_column": created_column, "expires_column": expires_column}


def read_moments(where: str, values: "Sequence[Any] | pl.Series") -> Moments:
    """Dates, times, ISO texts, and numbers as in a log.

    >>> read_moments("expires", ["1970-01-02", None, "1970-01-01T00:00:01"]).tolist()
    [86400000.0, nan, 1000.0]
    """
    import polars as pl

    from posrec.data.source.readers.times import TimeReader
    from posrec.progress import SilentProgress

    column = pl.Series(values, strict=False)
    if column.dtype == pl.String:
        column = column.replace("", None)
    elif column.dtype.is_float():
        column = column.fill_nan(None)
    moments = TimeReader(SilentProgress())(column)
    # 31/12/26 reads as a date of the year 31.
    wrong = column.filter((moments.is_null() | (moments < 0)) & column.is_not_null())
    if len(wrong):
        raise InputError(
            f"{where} holds {str(wrong[0])[:100]!r}, which is not a date or time; write e.g. "
            "2026-11-30 or 2026-11-30T18:00:00 (UTC), or nothing"
        )
    return moments.cast(pl.Float64).fill_null(float("nan")).to_numpy()
