"""The items file that the shop replaces during the day (`--items FILE`): columns such as stock and
price, and items that the run does not know yet. The run's other columns stay.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from posrec.data.item_times import ItemTimes
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

    def rows(self, ids: list[str]) -> "pl.DataFrame":
        """The first row of each id, for a run that knows these."""
        return self.file.by_known_id(ids, SilentProgress())

    def count_known(self, catalogue: Catalogue) -> int:
        import polars as pl

        ids = catalogue.vocabulary.ids[: catalogue.items]
        known = pl.Series(ids, dtype=pl.String).implode()
        return int(self.rows(ids)["id"].is_in(known).sum())


def read_columns(
    path: Path, before: ItemColumns | None, **times: Unpack[ItemTimes]
) -> ItemColumns:
    """Raises an InputError if the file can't be read, or is cut off unlike the one before."""
    from posrec.data.items import read_items

    columns = ItemColumns(read_items(path, **times), ends_with_line(path))
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
