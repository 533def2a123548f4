"""Columns of the items, such as stock and price, from a file that the shop replaces during the day
(`--items FILE`). They replace the run's columns of the same names; its other columns stay.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError
from posrec.io import open_regular
from posrec.progress import SilentProgress
from posrec.recommend.catalogue import Catalogue

if TYPE_CHECKING:  # polars is imported where there is such a file
    import polars as pl

    from posrec.data.items import ItemFile

# Files of these kinds can't be read at all if they are cut short.
WITHOUT_LINES = (".gz", ".zst", ".parquet")


@dataclass(frozen=True)
class ItemColumns:
    file: "ItemFile"
    ends_with_line: bool

    def rows(self, catalogue: Catalogue) -> "tuple[pl.DataFrame, int]":
        """The first row of each id, and how many of the ids the run knows."""
        import polars as pl

        ids = pl.Series(catalogue.vocabulary.ids[: catalogue.items], dtype=pl.String)
        rows = self.file.by_id(ids, SilentProgress())
        return rows, int(rows["id"].is_in(ids.implode()).sum())

    def count_known(self, catalogue: Catalogue) -> int:
        return self.rows(catalogue)[1]

    def columns(
        self, catalogue: Catalogue
    ) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Also what the log says about them."""
        from posrec.data.items import columns_for

        rows, known = self.rows(catalogue)
        ids = catalogue.vocabulary.ids[: catalogue.items]
        columns = {
            name: as_in_json(values) for name, values in columns_for(ids, rows).items()
        }
        unknown = len(rows) - known
        return columns, {"known": known, "unknown": unknown, "columns": list(columns)}


def as_in_json(values: list[Any]) -> list[Any]:
    """Dates and similar values as texts, as they are in the vocabulary of a run."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, str | int | float | None):
        return values
    return [json.loads(json.dumps(value, default=str)) for value in values]


def read_columns(path: Path, before: ItemColumns | None) -> ItemColumns:
    """Raises an InputError if the file can't be read, or is cut off unlike the one before."""
    from posrec.data.items import read_items

    columns = ItemColumns(read_items(path), ends_with_line(path))
    if columns.file.rows.is_empty():
        raise InputError(f"{path} has no rows, only the names of columns")
    if before is not None and before.ends_with_line and not columns.ends_with_line:
        raise InputError(
            f"{path} ends in the middle of a line, as a file does that is still being written"
        )
    return columns


def ends_with_line(path: Path) -> bool:
    if path.suffix in WITHOUT_LINES:
        return False
    with open_regular(path) as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
