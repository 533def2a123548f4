"""Columns of the items from a file that the shop replaces during the day, such as stock and price
(`--items FILE`).

A column of the file replaces the run's column of that name; an item without a row in the file has
no value in it. The run's other columns stay.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError, plural
from posrec.progress import SilentProgress
from posrec.recommend.catalogue import Catalogue

if TYPE_CHECKING:  # polars is imported where there is such a file
    from posrec.data.items import ItemFile

WITHOUT_LINES = (
    ".gz",
    ".zst",
    ".parquet",
)  # a file of these that is cut short can't be read at all
PLAIN = (str, int, float, bool, type(None))  # the types of JSON but lists and objects


@dataclass(frozen=True)
class ItemColumns:
    file: "ItemFile"
    ends_with_line: bool

    def columns(
        self, catalogue: Catalogue
    ) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Also what the log says about them."""
        import polars as pl

        from posrec.data.items import columns_for

        ids = catalogue.vocabulary.ids[: catalogue.items]
        known = pl.DataFrame({"id": ids}, schema={"id": pl.String})
        rows = self.file.by_id(known["id"], SilentProgress())
        columns = {
            name: as_in_json(values) for name, values in columns_for(ids, rows).items()
        }
        count = len(known.join(rows.select("id"), on="id", how="semi"))
        return columns, {
            "known": count,
            "unknown": len(rows) - count,
            "columns": list(columns),
        }


def as_in_json(values: list[Any]) -> list[Any]:
    """Dates and similar values as texts, as they are in the vocabulary of a run."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, PLAIN):
        return values
    return [json.loads(json.dumps(value, default=str)) for value in values]


def read_columns(path: Path, before: ItemColumns | None) -> ItemColumns:
    """An InputError where the file can't be read, or is likely to be half of the one that was read
    before."""
    from posrec.data.items import read_items

    columns = ItemColumns(read_items(path), ends_with_line(path))
    rows = len(columns.file.rows)
    if not rows:
        raise InputError(f"{path} has no rows, only the names of columns")
    if before is not None:
        if before.ends_with_line and not columns.ends_with_line:
            raise InputError(
                f"{path} ends in the middle of a line, as a file does that is still being written"
            )
        if 2 * rows < len(before.file.rows):
            many = f"{plural(rows, 'row')}, fewer than half of the {len(before.file.rows):,} before"
            raise InputError(
                f"{path} has {many}, as if half of it was missing; if it is whole, start the server again"
            )
    return columns


def ends_with_line(path: Path) -> bool:
    if path.suffix in WITHOUT_LINES:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
