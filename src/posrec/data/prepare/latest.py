"""The hours of a log as they were read, before filters: how many clicks and sessions, and what
shows that an export went wrong. A night compares the latest day with the nights before."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data.prepare import steps
from posrec.data.prepare.parts import ClickParts

HOUR = 3_600_000


def count_hours(
    clicks: pl.DataFrame, begins: steps.Numbers, lengths: steps.Codes
) -> pl.DataFrame:
    """Counts of the sessions that began in each hour; `begins` and `lengths` [sessions] are their
    first rows and their clicks.

    one_click   sessions of a single click
    repeats     clicks on the item that was clicked just before
    at_once     clicks at the time of the one before
    """
    first, _ = steps.first_and_last(clicks["time"].to_numpy(), begins)

    def equal_to_before(name: str) -> npt.NDArray[np.int32]:
        values = clicks[name].to_numpy()
        equal = np.zeros(len(values), dtype=np.bool_)
        np.equal(values[1:], values[:-1], out=equal[1:])
        equal[begins] = False
        counts: npt.NDArray[np.int32]
        counts = np.add.reduceat(equal, begins, dtype=np.int32)
        return counts

    sessions = {
        "hour": first // HOUR,
        "clicks": lengths,
        "sessions": np.ones_like(lengths),
        "one_click": lengths == 1,
        "repeats": equal_to_before("item"),
        "at_once": equal_to_before("time"),
    }
    hours = pl.DataFrame(sessions).group_by("hour").sum()
    return hours.cast(pl.Int64)


def latest_hours(
    hours: Sequence[pl.DataFrame], test: ClickParts | None, days: float
) -> dict[str, list[int]]:
    """The hours of the test part's latest days, in order of time; `hours` are those of all parts.

    Later ones are left out: they have clicks with wrong times, which were dropped.
    """
    if test is None or not hours:
        return {}
    begins, _, _ = steps.session_keys(test.parts[-1].load())
    end = begins[-1] // HOUR
    hour = pl.col("hour")
    counts = pl.concat(hours).group_by("hour").sum().sort("hour")
    latest = counts.filter((hour > end - days * 24) & (hour <= end))
    return latest.to_dict(as_series=False)
