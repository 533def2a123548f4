"""ClickStore: where readers put clicks, block by block. This one keeps them in memory, that of reading.py in files.

What stays in memory is 16 bytes a click. Ids are held as polars categories, four bytes each, with one copy of each
distinct id. The ids of sessions, of which there are many, are held as numbers without a copy, as long as every id is
the decimal text of its number ("7", but not "007") and has 32 bits at most.
"""

import numpy as np
import polars as pl

NUMBER = pl.UInt32()
# [digits] the least number with so many digits; nothing with no digits or more than ten is a NUMBER.
LEAST_NUMBER = np.array([2**32, 0, *(10**digits for digits in range(1, 10)), 2**32])
CLICK_SCHEMA = {"session": pl.String, "item": pl.String, "time": pl.Int64}


class ClickStore:
    """Keeps the clicks of a log in the order of the file.

    `session_type` and `item_type` are the types that readers give to ids: that of sessions changes with the first id
    that is not the text of a number, and the clicks that were added before change with it.
    """

    def __init__(self) -> None:
        self.session_type: pl.DataType = NUMBER
        self.item_categories = pl.Categories.random()
        self.item_type = pl.Categorical(self.item_categories)
        self.frames: list[pl.DataFrame] = []
        self.kept = 0

    def hold_session_texts(self) -> None:
        """Hold the ids of sessions as categories from now on."""
        self.session_type = pl.Categorical(pl.Categories.random())
        text = pl.col("session").cast(pl.String).cast(self.session_type)
        self.frames = [frame.with_columns(text) for frame in self.frames]

    def add(self, clicks: pl.DataFrame) -> None:
        self.frames.append(clicks)
        self.kept += len(clicks)

    def close(self) -> pl.DataFrame:
        """All clicks, once the log is read."""
        frames, self.frames = self.frames, []
        return pl.concat(frames) if frames else pl.DataFrame(schema=CLICK_SCHEMA)

    def item_names(self) -> pl.Series:
        """The id of each item, by its category's number."""
        return self.item_categories.to_series()


def other_texts(ids: pl.Series, numbers: pl.Series) -> pl.Series:
    """[ids] whether an id is not the text of its number, which is null for an id that is not a number at all.

    A text that is read as a number of as many digits as the text has characters consists of these digits alone.

    >>> other_texts(pl.Series(["7", "007", "0", "-7", "x"]), pl.Series([7, 7, 0, None, None], dtype=NUMBER)).to_list()
    [False, True, False, True, True]
    """
    if ids.dtype.is_integer():
        return numbers.is_null()
    digits = ids.cast(pl.String).str.len_bytes().fill_null(0).to_numpy()
    least = LEAST_NUMBER[np.minimum(digits, len(LEAST_NUMBER) - 1)]
    return (numbers < pl.Series(least)).fill_null(True)
