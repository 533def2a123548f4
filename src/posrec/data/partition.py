"""Partition: whole sessions of a log, in memory or in a folder of arrays.

    clicks      the click frame, `item` as a number; once sessions are grouped, `session` as one too
    sessions    arrays with a value for each session number, for what the clicks don't say:
                first_row    the row of the log in which the session (or its user) appears first, which breaks ties
                date         the date of the session, where the recipe dates sessions before it filters clicks
                key          what the sessions are sorted by, from sorting (sorting.py) to the next step that drops one

A log that fits into memory is one partition. A larger one has many, kept on disk and looked at one at a time.
"""

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data import steps
from posrec.io import write_array

CLICKS, SESSIONS = "clicks", "sessions"  # the first parts of the names of files
Array = npt.NDArray[Any]


class Kept(Protocol):
    """A partition, wherever it is kept."""

    def load(self) -> "Partition": ...

    def remove(self) -> None: ...


@dataclass(frozen=True)
class Partition:
    clicks: pl.DataFrame
    sessions: Mapping[str, Array] = field(default_factory=dict)

    def load(self) -> "Partition":
        return self

    def remove(self) -> None:
        """A partition in memory ends with its last reference."""

    def save(self, folder: Path) -> "StoredPartition":
        """Write the partition to a folder, which gets its name when it is complete."""
        unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        unfinished.mkdir(parents=True)
        for name in self.clicks.columns:
            write_array(unfinished / f"{CLICKS}.{name}.npy", self.clicks[name].to_numpy())
        for name, array in self.sessions.items():
            write_array(unfinished / f"{SESSIONS}.{name}.npy", array)
        give_folder_its_name(unfinished, folder)
        return StoredPartition(folder)


def give_folder_its_name(unfinished: Path, folder: Path) -> None:
    """Rename a folder that is complete. One that a task wrote before it was run again is the same, and stays."""
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(unfinished)


@dataclass(frozen=True)
class StoredPartition:
    """A partition in a folder, an .npy file for each column."""

    folder: Path

    def load(self) -> Partition:
        arrays = {path.stem: np.load(path) for path in sorted(self.folder.glob("*.npy"))}
        return from_arrays(arrays)

    def load_slice(self, clicks: tuple[int, int], sessions: tuple[int, int]) -> Partition:
        """The clicks and sessions from a first to before a last one."""
        spans = {CLICKS: clicks, SESSIONS: sessions}
        files = sorted(self.folder.glob("*.npy"))
        return from_arrays({path.stem: read_slice(path, *spans[path.stem.partition(".")[0]]) for path in files})

    def session_arrays(self) -> dict[str, Array]:
        files = self.folder.glob(f"{SESSIONS}.*.npy")
        return {path.stem.partition(".")[2]: np.load(path) for path in files}

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def from_arrays(arrays: Mapping[str, Array]) -> Partition:
    parts: dict[str, dict[str, Array]] = {CLICKS: {}, SESSIONS: {}}
    for name, array in arrays.items():
        kind, _, column = name.partition(".")
        parts[kind][column] = array
    order = sorted(parts[CLICKS], key=["session", "item", "time", "weight", "target"].index)
    return Partition(pl.DataFrame({name: pl.Series(parts[CLICKS][name]) for name in order}), parts[SESSIONS])


def read_slice(path: Path, first: int, after: int) -> Array:
    """Some values of an .npy file; the others are not read."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        _, _, dtype = np.lib.format.read_array_header_1_0(file)
        file.seek(first * dtype.itemsize, 1)
        return np.fromfile(file, dtype, after - first)


def on_clicks(partition: Partition, step: Any, *arguments: Any) -> Partition:
    """Apply a step of steps.py."""
    clicks = step(partition.clicks, *arguments)
    if clicks is partition.clicks:
        return partition
    return Partition(clicks, {name: array for name, array in partition.sessions.items() if name != "key"})


def group(partition: Partition, by_time: bool) -> Partition:
    """Number the sessions, and put the clicks of each side by side. `row`, if there is one, is the row of the log."""
    clicks, first = steps.number_sessions(partition.clicks)
    if "row" in clicks.columns:
        first = clicks["row"].to_numpy()[first]
        clicks = clicks.drop("row")
    return Partition(steps.order_clicks(clicks, by_time), {"first_row": first})


def cut_at_inactivity(partition: Partition, gap: int) -> Partition:
    """Split users into sessions. A session keeps the first row of its user, since sessions follow users in order."""
    clicks = steps.cut_at_inactivity(partition.clicks, gap)
    begins, _ = steps.session_rows(clicks)
    users = partition.clicks["session"].to_numpy()[begins]
    return Partition(clicks, {"first_row": partition.sessions["first_row"][users]})


def date_sessions(partition: Partition, resolution: int) -> Partition:
    """Keep the date of each session, even if a later step drops the click that dates it."""
    dates = steps.session_dates(partition.clicks, resolution)
    return replace(partition, sessions={**partition.sessions, "date": dates})


def latest_date(partition: Partition) -> int | None:
    """The date of the last session, of sessions that are sorted by date (sorting.py)."""
    return int(partition.sessions["key"][-1]) if len(partition.clicks) else None


def split_around_date(partition: Partition, boundary: int) -> tuple[Partition, Partition]:
    """The field's split: training strictly before the boundary, test strictly after, none on it. Sessions are sorted by
    date."""
    dates = partition.sessions["key"]
    return cut(partition, np.searchsorted(dates, boundary), np.searchsorted(dates, boundary, side="right"))


def split_at_first_click(partition: Partition, boundary: int) -> tuple[Partition, Partition]:
    """Test on the sessions that began at the boundary or later; none is lost. Sessions are sorted by first click."""
    first = np.searchsorted(partition.sessions["key"], boundary)
    return cut(partition, first, first)


def cut(partition: Partition, train_end: np.int64, test_begin: np.int64) -> tuple[Partition, Partition]:
    """The sessions before number `train_end`, and those from number `test_begin` on; they are numbered in order."""
    numbers = np.array([train_end, test_begin], dtype=np.uint32)  # as the column, which is not converted then
    end, begin = np.searchsorted(partition.clicks["session"].to_numpy(), numbers)
    return Partition(partition.clicks[:end]), Partition(partition.clicks[begin:])


def session_starts(partition: Partition) -> npt.NDArray[np.int64]:
    """[sessions] when each session begins, in their order. Sessions are sorted by first click."""
    return partition.sessions["key"]
