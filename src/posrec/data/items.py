"""What is known about items beside their ids: title, category, any other column."""

import io
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import polars as pl

from posrec.data.source.files import File, find_files, read_whole
from posrec.data.source.log import as_frame, is_path
from posrec.data.source.readers.columns import (
    COMMON_NAMES,
    comma_separated,
    find_common,
    plain_name,
)
from posrec.data.source.readers.parquet import POLARS_ERRORS
from posrec.errors import InputError, first_line
from posrec.progress import Progress

ID_NAMES = ("id", *COMMON_NAMES["item"])
PACKED = (".gz", ".zst", ".bz2", ".xz")
SLICE = 10_000
TITLE_NAMES = ("title", "name", "itemname", "productname", "label")


@dataclass(frozen=True)
class ItemFile:
    """The rows of a file or a table, one for each item."""

    path: File | str
    rows: pl.DataFrame
    id_columns: list[str]  # the columns that may hold the item ids, the likeliest first

    def __str__(self) -> str:
        return str(self.path)

    def by_id(self, items: pl.Series, progress: Progress) -> pl.DataFrame:
        """The rows with a column `id` of texts, each once: the one with most of the log's `items`."""
        id_column = max(
            self.id_columns,
            key=lambda name: (
                self.rows[name].cast(pl.String).is_in(items.implode()).sum()
            ),
        )
        file = self.path if isinstance(self.path, str) else self.path.name
        progress.message(f"{file}: column {id_column!r} read as the item id")
        rows = self.rows
        if id_column != "id" and "id" in rows.columns:
            progress.message(
                f"{file}: column 'id' is left out, because it holds other ids"
            )
            rows = rows.drop("id")
        rows = rows.rename({id_column: "id"}).with_columns(pl.col("id").cast(pl.String))
        title_column = (
            "title"
            if "title" in rows.columns
            else find_common(rows.columns, TITLE_NAMES)
        )
        if title_column not in (None, "title", "id"):
            rows = rows.rename({title_column: "title"})
            progress.message(f"{file}: column {title_column!r} read as the title")
        # JSON has no NaN. Dates and similar types become text when the vocabulary is written.
        rows = rows.with_columns(pl.selectors.float().fill_nan(None))
        rows = rows.filter(pl.col("id").is_not_null())
        first = rows.unique("id", keep="first", maintain_order=True)
        if repeated := len(rows) - len(first):
            progress.message(
                f"{file}: {repeated:,} of {len(rows):,} rows have the id of an earlier row, which is kept"
            )
        return first


def columns_for(ids: list[str], about_items: pl.DataFrame) -> dict[str, list[Any]]:
    """The columns for these items, in this order; None where nothing is known."""
    wanted = pl.DataFrame({"id": ids}, schema={"id": pl.String})
    found = wanted.join(about_items, on="id", how="left", maintain_order="left").drop(
        "id"
    )
    return {name: in_slices(found[name]) for name in found.columns}


def in_slices(column: pl.Series) -> list[Any]:
    """The values of a column; `to_list` of a whole one would block a server's other threads."""
    starts = range(0, len(column), SLICE)
    return [value for start in starts for value in column.slice(start, SLICE).to_list()]


def read_items(source: Any) -> ItemFile:
    """A file with one row an item, or a polars, pandas or Arrow table."""
    if not is_path(source):
        return with_ids("items", as_frame(source).collect())
    path = find_files(source)[0]
    data = io.BytesIO(read_whole(path))
    endings = [ending.lower() for ending in PurePath(path.name).suffixes]
    kind = next(
        (ending for ending in reversed(endings) if ending not in PACKED), ".csv"
    )
    try:
        if kind == ".parquet":
            rows = pl.read_parquet(data)
        elif kind in (".jsonl", ".ndjson"):
            rows = pl.read_ndjson(data, infer_schema_length=None)
        else:
            rows = pl.read_csv(
                data, separator="\t" if kind == ".tsv" else ",", infer_schema=False
            )
    except POLARS_ERRORS as error:
        raise InputError(
            f"{path} can't be read as {kind[1:]}: {first_line(error)}"
        ) from None
    return with_ids(path, rows)


def with_ids(path: File | str, rows: pl.DataFrame) -> ItemFile:
    """The rows with the columns that may hold the ids."""
    single = [
        name for name, kind in rows.schema.items() if not kind.is_nested()
    ]  # `product` may be an object
    id_columns = [
        name for common in ID_NAMES for name in single if plain_name(name) == common
    ]
    if not id_columns:
        raise InputError(
            f"{path} has no column that looks like an item id (id, item_id, sku, ...): {comma_separated(rows.columns)}"
        )
    return ItemFile(path, rows, id_columns)
