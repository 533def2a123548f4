"""Clicks on disk, by partition: SpillStore writes them while a log is read, Pieces reads those of a partition.

A session's partition is the hash of its id. Clicks are written in pieces, one file for each partition and each few
million clicks that were read, in the order of the log. Items are numbers already: what they stand for is in a file
beside the pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data.partition import Partition
from posrec.data.readers.store import CLICK_SCHEMA, ClickStore

HASH_SEED = 0  # every task must put a session into the same partition
ITEMS, COLUMNS = "items.arrow", "columns.arrow"  # the ids of the items; no click, for a partition that has none
Codes = npt.NDArray[np.uint32]


class SpillStore(ClickStore):
    """Writes clicks to `folder`, whenever there are `clicks_at_once` of them."""

    spills = True

    def __init__(self, folder: Path, partitions: int, clicks_at_once: int, whole_log: bool = True) -> None:
        super().__init__()
        self.session_type = pl.String()
        self.folder, self.partitions, self.clicks_at_once = folder, partitions, clicks_at_once
        self.whole_log = whole_log
        self.buffered = self.flushed = 0
        self.any_item: pl.Series | None = None  # polars forgets categories with the last series that has them
        folder.mkdir(parents=True)

    def add(self, clicks: pl.DataFrame) -> None:
        if self.any_item is None:
            self.any_item = clicks["item"].head(1)
        first_row = pl.int_range(self.kept, self.kept + len(clicks), dtype=pl.UInt64)
        clicks = clicks.with_columns(pl.col("item").to_physical(), row=first_row)
        if not self.kept:
            clicks.clear().write_ipc(self.folder / COLUMNS)
        super().add(clicks)
        self.buffered += len(clicks)
        if self.buffered >= self.clicks_at_once:
            self.flush()

    def flush(self) -> None:
        clicks = super().close()
        partition = (pl.col("session").hash(HASH_SEED) % self.partitions).cast(pl.UInt16)
        pieces = clicks.with_columns(partition=partition).partition_by("partition", as_dict=True, include_key=False)
        for (number,), piece in pieces.items():
            piece.write_ipc(piece_path(self.folder, self.flushed, number), compat_level=pl.CompatLevel.newest())
        self.flushed, self.buffered = self.flushed + 1, 0

    def close(self) -> pl.DataFrame:
        """Write what is left, and the ids of the items; the clicks are not in memory."""
        if self.buffered:
            self.flush()
        pl.DataFrame({"item": self.item_names()}, schema={"item": pl.String}).write_ipc(self.folder / ITEMS)
        return pl.DataFrame(schema=CLICK_SCHEMA)


def piece_path(folder: Path, flush: int, partition: int) -> Path:
    return folder / f"{flush:05d}-{partition:04d}.arrow"


@dataclass(frozen=True)
class SpilledPart:
    """What a SpillStore wrote. `first_row` is the row of the log with which it begins."""

    folder: Path
    first_row: int = 0
    codes: Codes | None = None  # [items of the store] their numbers in the whole log; None if they are the same

    def item_names(self) -> pl.Series:
        return pl.read_ipc(self.folder / ITEMS)["item"]


@dataclass(frozen=True)
class Pieces:
    """The clicks of one partition, in the order of the log."""

    parts: Sequence[SpilledPart]
    partition: int

    def load(self) -> Partition:
        frames = []
        for part in self.parts:
            for path in self.files(part):
                piece = pl.read_ipc(path).with_columns(pl.col("row") + part.first_row)
                if part.codes is not None:
                    piece = piece.with_columns(item=pl.Series(part.codes[piece["item"].to_numpy()]))
                frames.append(piece)
        if not frames:
            path = next(path for part in self.parts if (path := part.folder / COLUMNS).exists())
            frames.append(pl.read_ipc(path))
        return Partition(pl.concat(frames))

    def files(self, part: SpilledPart) -> list[Path]:
        return sorted(part.folder.glob(f"*-{self.partition:04d}.arrow"))

    def remove(self) -> None:
        for part in self.parts:
            for path in self.files(part):
                path.unlink()


def merge_items(names: Sequence[pl.Series]) -> tuple[pl.Series, list[Codes | None]]:
    """One numbering of the items of several: their ids, and the numbers there of the items of each.

    >>> ids, codes = merge_items([pl.Series(["a", "b"]), pl.Series(["c", "b"])])
    >>> ids.to_list(), codes[0], codes[1].tolist()
    (['a', 'b', 'c'], None, [2, 1])
    """
    if len(names) == 1:
        return names[0], [None]
    merged = pl.concat([one.cast(pl.String).alias("item") for one in names]).unique(maintain_order=True)
    numbers = merged.to_frame().with_row_index("number")
    codes: list[Codes | None] = [None]  # the items of the first keep their numbers
    for one in names[1:]:
        wanted = one.cast(pl.String).alias("item").to_frame()
        codes.append(wanted.join(numbers, on="item", how="left", maintain_order="left")["number"].to_numpy())
    return merged, codes
