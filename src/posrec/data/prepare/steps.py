"""Pure functions, click frame -> click frame; a recipe is a list of them.

`group_sessions` comes first. A frame holds whole sessions, all of a log or one part of it.

>>> clicks = pl.DataFrame({"session": ["a", "b", "a"], "item": ["x", "y", "z"], "time": [2, 1, 3]})
>>> keep_lengths(group_sessions(clicks), minimum=2)["item"].to_list()
['x', 'z']
"""

import math

import numpy as np
import numpy.typing as npt
import polars as pl

SECOND = 1000
DAY = 86_400_000

# Columns that a frame may have beside session, item and time, and weight and target:
#   day         up to `group_sessions`, if `time` counts from the session's beginning (Diginetica)
#   first_row   where the session (or its user) appears first, if the log has several parts
#   by_user     up to `cut_at_inactivity`, whether a click has a user and no session yet
#   kind        up to `drop_duplicates`, a number for the kind of event
#   date        from `date_sessions` to the split, the date of the session; or of `begun_since`

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint32]


def group_sessions(clicks: pl.DataFrame, by_time: bool = True) -> pl.DataFrame:
    """Put sessions in order of first appearance, numbered by that row.

    The clicks of a session are in order of time (file order on ties), or in file order.
    """
    if "day" in clicks.columns:
        clicks = place_at_end_of_day(clicks)
    first = first_rows(clicks["session"])
    clicks = clicks.with_columns(session=pl.Series(first))
    if "row" in clicks.columns:
        clicks = clicks.with_columns(first_row=clicks["row"].gather(first)).drop("row")
    clicks = clicks[np.argsort(first, kind="stable")]
    if not by_time:
        return clicks
    session = clicks["session"].to_numpy()
    time = clicks["time"].to_numpy()
    ascends = (time[1:] >= time[:-1]) | (session[1:] != session[:-1])
    if ascends.all():  # most logs are in order of time
        return clicks
    return clicks.sort(["session", "time"], maintain_order=True)


def first_rows(ids: pl.Series) -> Codes:
    """[rows] the row in which each id appears first."""
    if not isinstance(ids.dtype, pl.Categorical):
        ids = ids.cast(pl.String).cast(pl.Categorical(pl.Categories.random()))
    codes: Codes = ids.to_physical().to_numpy()
    first: Codes = np.empty(int(codes.max(initial=0)) + 1, dtype=np.uint32)
    # Assigned from the back, so that the earliest row of each id overwrites the later ones.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1, dtype=np.uint32)
    rows: Codes = first[codes]
    return rows


def place_at_end_of_day(clicks: pl.DataFrame) -> pl.DataFrame:
    """Date a session whose `time` counts from its beginning: it ends with its last-read `day`."""
    end_of_day = pl.col("day").last().over("session") + DAY - 1
    until_latest = pl.col("time").max().over("session") - pl.col("time")
    return clicks.with_columns(time=end_of_day - until_latest).drop("day")


def cut_at_inactivity(clicks: pl.DataFrame, gap: int) -> pl.DataFrame:
    """Split each user's clicks after more than `gap` milliseconds without one."""
    new_user = pl.col("session") != pl.col("session").shift()
    inactivity = pl.col("time") - pl.col("time").shift() > gap
    if "by_user" in clicks.columns:
        inactivity &= pl.col("by_user")
    begins = (new_user | inactivity).fill_null(False).cast(pl.UInt32)
    session = begins.cum_sum().set_sorted()
    return clicks.with_columns(session=session).drop("by_user", strict=False)


def drop_duplicates(clicks: pl.DataFrame) -> pl.DataFrame:
    """Drop an event that repeats session, item and `kind` of one at most a second before."""
    same = [name for name in ("session", "item", "kind") if name in clicks.columns]
    since = pl.col("time") - pl.col("time").shift().over(same)
    return clicks.filter((since > SECOND).fill_null(True)).drop("kind", strict=False)


def drop_repeats(clicks: pl.DataFrame) -> pl.DataFrame:
    """Drop a click on the item clicked just before in the session, as when a page is reloaded.

    The click that stays has the greatest weight of them, and is a target if one of them is.
    """
    same_session = pl.col("session") == pl.col("session").shift()
    same_item = pl.col("item") == pl.col("item").shift()
    repeats = (same_session & same_item).fill_null(False)
    visit = (~repeats).cum_sum()
    strength = pl.selectors.by_name("weight", "target", require_all=False)
    return clicks.with_columns(strength.max().over(visit)).filter(~repeats)


def keep_latest_clicks(clicks: pl.DataFrame, maximum: int) -> pl.DataFrame:
    return clicks.filter(pl.int_range(pl.len()).reverse().over("session") < maximum)


def keep_lengths(
    clicks: pl.DataFrame, minimum: int = 0, maximum: float = math.inf
) -> pl.DataFrame:
    _, lengths = session_rows(clicks)
    fits = (lengths >= minimum) & (lengths <= maximum)
    if fits.all():
        return clicks
    return clicks.filter(pl.Series(np.repeat(fits, lengths)))


def keep_items(clicks: pl.DataFrame, chosen: Mask) -> pl.DataFrame:
    """Keep the clicks on items for which `chosen [items]` is true."""
    if chosen.all():
        return clicks
    is_chosen = chosen[clicks["item"].to_numpy()]
    return clicks.filter(pl.Series(is_chosen))


def first_and_last(times: Numbers, begins: Numbers) -> tuple[Numbers, Numbers]:
    """[sessions] the earliest and the latest time of each session."""
    return np.minimum.reduceat(times, begins), np.maximum.reduceat(times, begins)


def date_sessions(clicks: pl.DataFrame, resolution: int) -> pl.DataFrame:
    """Add the `date` of a session's last click, which a later step may drop."""
    begins, lengths = session_rows(clicks)
    dates = clicks["time"].to_numpy()[begins + lengths - 1] // resolution * resolution
    return clicks.with_columns(date=pl.Series(np.repeat(dates, lengths)))


def session_keys(
    clicks: pl.DataFrame,
) -> tuple[Numbers, npt.NDArray[np.uint64], Codes]:
    """[sessions] the date or else the first click, the row of first appearance, and the length."""
    begins, lengths = session_rows(clicks)
    if "date" in clicks.columns:
        keys = clicks["date"].to_numpy()[begins]
    else:
        keys, _ = first_and_last(clicks["time"].to_numpy(), begins)
    if "first_row" in clicks.columns:
        rows = clicks["first_row"].to_numpy()[begins]
    else:
        rows = begins.astype(np.uint64)
    return keys, rows, lengths


def sort_sessions(clicks: pl.DataFrame) -> pl.DataFrame:
    """By `date`, or else by first click; ties by first appearance."""
    keys, first_appearance, lengths = session_keys(clicks)
    order = np.lexsort((first_appearance, keys))
    starts = np.cumsum(lengths, dtype=np.uint32) - lengths
    lengths = lengths[order]
    new_starts = np.cumsum(lengths, dtype=np.uint32) - lengths
    # Every click of a session moves as far as its first. The shifts are unsigned, and may wrap.
    rows = np.repeat(starts[order] - new_starts, lengths)
    rows += np.arange(len(rows), dtype=np.uint32)
    return clicks[rows]


def split_around_date(
    clicks: pl.DataFrame, boundary: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The field's split: training before the boundary, test after it, none on it."""
    dates = clicks["date"].to_numpy()
    clicks = clicks.drop("date")
    train_end = np.searchsorted(dates, boundary)
    test_begin = np.searchsorted(dates, boundary, side="right")
    return clicks[:train_end], clicks[test_begin:]


def split_at_first_click(
    clicks: pl.DataFrame, boundary: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Test on the sessions that began at the boundary or later; none is lost."""
    keys, _, lengths = session_keys(clicks)
    row = int(lengths[: np.searchsorted(keys, boundary)].sum())
    return clicks[:row], clicks[row:]


def begun_since(clicks: pl.DataFrame, boundary: int, chosen: Mask) -> pl.DataFrame:
    """The sessions whose first click on an item of `chosen [items]`, or else on any, was at the
    boundary or later; `date` is its time."""
    is_chosen = pl.Series(chosen[clicks["item"].to_numpy()])
    clicks = clicks.with_columns(date=pl.when(is_chosen).then("time"))
    first = pl.coalesce(pl.col("date", "time").min().over("session"))
    return clicks.with_columns(date=first).filter(pl.col("date") >= boundary)


def session_rows(clicks: pl.DataFrame) -> tuple[Numbers, Codes]:
    """[sessions] the row of each session's first click, and the number of its clicks."""
    session = clicks["session"].to_numpy()
    is_first = np.ones(len(session), dtype=np.bool_)
    np.not_equal(session[1:], session[:-1], out=is_first[1:])
    begins = np.flatnonzero(is_first)
    return begins, np.diff(begins, append=len(clicks)).astype(np.uint32)


def keep_latest_samples(clicks: pl.DataFrame, count: int) -> pl.DataFrame:
    """Keep the latest `count` samples, as the field counts them.

    A session's samples are listed longest prefix first. If the kept ones begin inside a session,
    its longer prefixes are dropped, and so its last clicks.
    """
    begins, lengths = session_rows(clicks)
    samples = lengths.astype(np.int64) - 1
    later = samples[::-1].cumsum()[::-1] - samples  # samples in the sessions after each
    samples_left = np.clip(count - later, 0, samples)
    clicks_left = np.where(samples_left > 0, samples_left + 1, 0)
    position = np.arange(len(clicks)) - np.repeat(begins, lengths)
    return clicks.filter(pl.Series(position < np.repeat(clicks_left, lengths)))
