"""Pure functions, click frame -> click frame. A recipe in `recipes.py` is a plain list of them.

`group_sessions` comes first. It numbers the sessions in order of first appearance and puts the clicks of a session side
by side, in their final order; every later step keeps this. Row numbers are uint32, as polars' own. A frame holds whole
sessions, all of a log or one part of it: what a step must know about the whole log, such as which items are frequent,
it is given. Beside session, item and time, and `weight` and `target` where options ask for them, a frame has

    first_row   the row of the log in which the session (or its user) appears first, if the log has several parts
    by_user     whether it is a click of a user and not yet of a session, up to `cut_at_inactivity`, if a log has both
    kind        a number for the kind of event, up to `drop_duplicates`
    date        the date of the session, from `date_sessions` to the split

>>> clicks = pl.DataFrame({"session": ["a", "b", "a"], "item": ["x", "y", "z"], "time": [2, 1, 3]})
>>> drop_short_sessions(group_sessions(clicks), minimum=2)["item"].to_list()
['x', 'z']
"""

import numpy as np
import numpy.typing as npt
import polars as pl

SECOND, DAY = 1000, 86_400_000

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint32]


def group_sessions(clicks: pl.DataFrame, by_time: bool = True) -> pl.DataFrame:
    """Sessions in order of first appearance, which are numbered 0, 1, 2, ...; inside one, clicks by time (file order on
    ties) or in file order. `row`, if there is one, is the row of the log."""
    numbers, first = number_by_appearance(codes_of(clicks["session"]))
    clicks = clicks.with_columns(session=pl.Series(numbers))
    if "row" in clicks.columns:
        first_row = clicks["row"].to_numpy()[first]
        clicks = clicks.drop("row").with_columns(first_row=pl.Series(first_row[numbers]))
    return order_clicks(clicks, by_time)


def order_clicks(clicks: pl.DataFrame, by_time: bool = True) -> pl.DataFrame:
    """Put the clicks of a numbered session side by side, by time or in file order."""
    order, lengths = rows_by_session(clicks["session"].to_numpy())
    clicks = clicks[order].with_columns(session=repeat_numbers(lengths))
    if by_time and not in_order(clicks["time"].to_numpy(), lengths):
        return clicks.sort(["session", "time"], maintain_order=True)
    return clicks


def rows_by_session(numbers: Codes) -> tuple[Codes, Codes]:
    """The rows of session 0 in order, then those of session 1, ...; and the number of rows of each session.

    A counting sort: that of scipy, with which the sparse matrix of one row and a column for each session is turned.
    """
    from scipy.sparse import csr_array  # here, because its import takes 0.2 s

    rows, sessions = len(numbers), int(numbers.max()) + 1 if len(numbers) else 0
    by_row = csr_array((np.arange(rows, dtype=np.uint32), numbers, [0, rows]), shape=(1, sessions))
    by_session = by_row.tocsc()
    rows_in_order: Codes = by_session.data
    return rows_in_order, np.diff(by_session.indptr).astype(np.uint32)


def in_order(times: Times, lengths: Codes) -> bool:
    """Whether the times of each session, which has `lengths [sessions]` clicks, ascend."""
    ascends = times[1:] >= times[:-1]
    ascends[np.cumsum(lengths[:-1], dtype=np.int64) - 1] = True  # from one session to the next they need not
    return bool(ascends.all())


def codes_of(ids: pl.Series) -> Codes:
    """A number for each distinct id, in no particular order."""
    if not isinstance(ids.dtype, pl.Categorical):
        ids = ids.cast(pl.String).cast(pl.Categorical(pl.Categories.random()))
    return ids.to_physical().to_numpy()


def number_by_appearance(codes: Codes) -> tuple[Codes, Codes]:
    """0, 1, 2, ... in order of first appearance, and the row of each: [7, 3, 7, 9] -> [0, 1, 0, 2], [0, 1, 3]."""
    first = first_rows(codes)[codes]  # [rows]
    is_first = first == np.arange(len(codes), dtype=np.uint32)
    number = np.cumsum(is_first, dtype=np.uint32) - np.uint32(1)  # of the code of a row that is its first
    return number[first], np.flatnonzero(is_first).astype(np.uint32)


def first_rows(codes: Codes) -> Codes:
    """[largest code + 1] the row in which each code appears first; the number of rows for one that does not."""
    rows = len(codes)
    first = np.full(int(codes.max()) + 1 if rows else 0, rows, dtype=np.uint32)
    # Assigned from the back, so that the earliest row of each code overwrites the later ones.
    first[codes[::-1]] = np.arange(rows - 1, -1, -1, dtype=np.uint32)
    return first


def distinct(codes: Codes) -> Codes:
    """Every code once, in order of first appearance: [7, 3, 7, 9] -> [7, 3, 9]."""
    first = first_rows(codes)
    return codes[np.sort(first[first < len(codes)])]


def renumber_items(clicks: pl.DataFrame, codes: Codes) -> pl.DataFrame:
    """Replace the numbers of items by those of another numbering, `codes [items]`."""
    return clicks.with_columns(item=pl.Series(codes[clicks["item"].to_numpy()]))


def cut_at_inactivity(clicks: pl.DataFrame, gap: int) -> pl.DataFrame:
    """Split each user's clicks into sessions: a new one begins after more than `gap` milliseconds without a click.

    `by_user`, if there is such a column, says which clicks are those of users; the others have their sessions.
    """
    new_user = pl.col("session") != pl.col("session").shift()
    inactivity = pl.col("time") - pl.col("time").shift() > gap
    if "by_user" in clicks.columns:
        inactivity &= pl.col("by_user")
    session = (new_user | inactivity).fill_null(False).cast(pl.UInt32).cum_sum().set_sorted()
    return clicks.with_columns(session=session).drop("by_user", strict=False)


def drop_duplicates(clicks: pl.DataFrame) -> pl.DataFrame:
    """Drop an event that was sent twice: one of the same session, item and `kind` came at most a second before it."""
    same = [name for name in ("session", "item", "kind") if name in clicks.columns]
    since = pl.col("time") - pl.col("time").shift().over(same)
    return clicks.filter((since > SECOND).fill_null(True)).drop("kind", strict=False)


def drop_repeats(clicks: pl.DataFrame) -> pl.DataFrame:
    """Drop a click on the item that was clicked just before in the same session, as when a page is reloaded.

    The click that stays gets the greatest weight of those it stands for, and is a target if one of them is: whoever
    views an item and then buys it has bought it.
    """
    same = (pl.col("session") == pl.col("session").shift()) & (pl.col("item") == pl.col("item").shift())
    same = same.fill_null(False)
    visit = (~same).cum_sum()
    strongest = [pl.col(name).max().over(visit) for name in ("weight", "target") if name in clicks.columns]
    return clicks.with_columns(*strongest, same=same).filter(~pl.col("same")).drop("same")


def keep_latest_clicks(clicks: pl.DataFrame, maximum: int) -> pl.DataFrame:
    """Keep only the latest `maximum` clicks of each session."""
    return clicks.filter(pl.int_range(pl.len()).reverse().over("session") < maximum)


def drop_short_sessions(clicks: pl.DataFrame, minimum: int) -> pl.DataFrame:
    return keep_lengths(clicks, minimum, len(clicks))


def keep_lengths(clicks: pl.DataFrame, minimum: int, maximum: int) -> pl.DataFrame:
    """Keep the sessions of `minimum` to `maximum` clicks."""
    _, lengths = session_rows(clicks)
    kept = (lengths >= minimum) & (lengths <= maximum)
    return clicks if kept.all() else clicks.filter(pl.Series(np.repeat(kept, lengths), dtype=pl.Boolean))


def keep_items(clicks: pl.DataFrame, kept: Mask) -> pl.DataFrame:
    """Keep the clicks on the items of which `kept [items]` is true; `item` holds their numbers."""
    return clicks if kept.all() else clicks.filter(pl.Series(kept[clicks["item"].to_numpy()], dtype=pl.Boolean))


def first_and_last(times: Times, begins: npt.NDArray[np.int64]) -> tuple[Times, Times]:
    """[sessions] the earliest and the latest of the times of each session."""
    if not len(begins):
        return times[:0], times[:0]
    return np.minimum.reduceat(times, begins), np.maximum.reduceat(times, begins)


def date_sessions(clicks: pl.DataFrame, resolution: int) -> pl.DataFrame:
    """Add `date`, that of the session's last click, to `resolution` milliseconds: a later step may drop that click."""
    begins, lengths = session_rows(clicks)
    dates = clicks["time"].to_numpy()[begins + lengths - 1] // resolution * resolution
    return clicks.with_columns(date=pl.Series(np.repeat(dates, lengths)))


def session_keys(clicks: pl.DataFrame, by_date: bool) -> tuple[Times, npt.NDArray[np.uint64], Codes]:
    """[sessions] what sessions are sorted by, the date or the first click; their first rows; and their lengths."""
    begins, lengths = session_rows(clicks)
    if by_date:
        keys = clicks["date"].to_numpy()[begins]
    else:
        keys, _ = first_and_last(clicks["time"].to_numpy(), begins)
    rows = clicks["first_row"].to_numpy()[begins] if "first_row" in clicks.columns else begins.astype(np.uint64)
    return keys, rows, lengths


def sort_sessions(clicks: pl.DataFrame, by_date: bool = False) -> pl.DataFrame:
    """Sort sessions by `date` or by their first click, those with the same one by first appearance; renumber them."""
    keys, rows, lengths = session_keys(clicks, by_date)
    appear_in_order = (rows[1:] >= rows[:-1]).all()
    order = np.argsort(keys, kind="stable") if appear_in_order else np.lexsort((rows, keys))
    return order_sessions(clicks, order, lengths)


def split_around_date(clicks: pl.DataFrame, boundary: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The field's split: training strictly before the boundary, test strictly after, none on it. Sessions are sorted by
    date."""
    dates = clicks["date"].to_numpy()
    clicks = clicks.drop("date")
    return clicks[: np.searchsorted(dates, boundary)], clicks[np.searchsorted(dates, boundary, side="right") :]


def split_at_first_click(clicks: pl.DataFrame, boundary: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Test on the sessions that began at the boundary or later; none is lost. Sessions are sorted by first click."""
    keys, _, lengths = session_keys(clicks, by_date=False)
    row = int(lengths[: np.searchsorted(keys, boundary)].sum())
    return clicks[:row], clicks[row:]


def session_starts(clicks: pl.DataFrame) -> Times:
    """[sessions] when each session begins."""
    return session_keys(clicks, by_date=False)[0]


def latest_date(clicks: pl.DataFrame) -> int | None:
    """The date of the last session, if there are any. Sessions are sorted by date."""
    return int(clicks["date"][-1]) if len(clicks) else None


def session_rows(clicks: pl.DataFrame) -> tuple[npt.NDArray[np.int64], Codes]:
    """[sessions] the row of each session's first click, and the number of its clicks. Sessions lie side by side, so
    that no group-by is needed."""
    session = clicks["session"].to_numpy()
    is_first = np.ones(len(session), dtype=np.bool_)
    np.not_equal(session[1:], session[:-1], out=is_first[1:])
    begins = np.flatnonzero(is_first)
    return begins, np.diff(begins, append=len(clicks)).astype(np.uint32)


def order_sessions(clicks: pl.DataFrame, order: npt.NDArray[np.int64], lengths: Codes) -> pl.DataFrame:
    """Put whole sessions, of these lengths, into another order and renumber them."""
    if (order[1:] > order[:-1]).all():
        return clicks.with_columns(session=repeat_numbers(lengths))
    starts = np.cumsum(lengths, dtype=np.uint32) - lengths
    lengths, starts = lengths[order], starts[order]
    # The row of every click in the new order: the rows of one session after the other. Unsigned, so shifts may wrap.
    rows = np.repeat(starts - (np.cumsum(lengths, dtype=np.uint32) - lengths), lengths)
    rows += np.arange(len(rows), dtype=np.uint32)
    return clicks[rows].with_columns(session=repeat_numbers(lengths))


def repeat_numbers(lengths: Codes) -> pl.Series:
    """The number of every click's session, 0, 1, 2, ..., from the lengths of the sessions."""
    return pl.Series(np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)).set_sorted()


def keep_latest_samples(clicks: pl.DataFrame, wanted: int) -> pl.DataFrame:
    """The latest `wanted` samples, as the field counts them.

    A session of n clicks gives n - 1 samples, listed longest prefix first. If the samples begin inside a session, its
    longer prefixes are dropped, which leaves the session without its last clicks.
    """
    lengths = session_rows(clicks)[1].astype(np.int64)
    samples = lengths - 1
    later = samples[::-1].cumsum()[::-1] - samples  # samples in the sessions after each
    kept = np.clip(wanted - later, 0, samples)
    kept = np.where(kept > 0, kept + 1, 0)
    position = np.arange(len(clicks)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return clicks.filter(pl.Series(position < np.repeat(kept, lengths)))
