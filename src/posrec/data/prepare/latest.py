"""The hours of a log as they were read, before filters: how many clicks and sessions, and what
shows that an export went wrong. A night compares the latest day with the nights before."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from posrec.data.prepare import steps
from posrec.data.prepare.parts import ClickParts

HOUR = 3_600_000


def count_hours(
    clicks: pl.DataFrame, begins: steps.Numbers, lengths: steps.Codes
) -> pl.DataFrame:
    """Counts of the sessions that began in each hour; `begins` and `lengths` [sessions] are their
    first rows and their clicks. Clicks are `repeats` of the item, or `at_once`, at the time, of the
    click before."""
    first, _ = steps.first_and_last(clicks["time"].to_numpy(), begins)
    counts = {
        "hour": first // HOUR,
        "clicks": lengths,
        "sessions": np.ones_like(lengths),
        "one_click": lengths == 1,
    }
    for name, column in (("repeats", "item"), ("at_once", "time")):
        values = clicks[column].to_numpy()
        is_equal = np.zeros(len(values), dtype=np.bool_)
        np.equal(values[1:], values[:-1], out=is_equal[1:])
        is_equal[begins] = False
        counts[name] = np.add.reduceat(is_equal, begins, dtype=np.int32)
    return pl.DataFrame(counts).group_by("hour").sum().cast(pl.Int64)


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
