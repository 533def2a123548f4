"""ClickStore: where readers put clicks, block by block. This one keeps them in memory, that of reading.py in files.

What stays in memory is 16 bytes a click. Ids are polars categories, four bytes each, with one copy of each distinct id.
"""

import polars as pl

CLICK_SCHEMA = {"session": pl.String, "item": pl.String, "time": pl.Int64}


class ClickStore:
    """Keeps the clicks of a log in the order of the file. `session_type` and `item_type` are the types that readers
    give to ids."""

    def __init__(self) -> None:
        self.session_type: pl.DataType = pl.Categorical(pl.Categories.random())
        self.item_categories = pl.Categories.random()
        self.item_type = pl.Categorical(self.item_categories)
        self.frames: list[pl.DataFrame] = []
        self.kept = 0

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
