"""What is known about items beside their ids: title, category, any other column."""

import io
import json
from pathlib import PurePath
from typing import Any, NamedTuple, Unpack

import polars as pl

from posrec.data.item_times import CREATED, EXPIRES, ItemTimes, read_moments
from posrec.data.item_types import typed
from posrec.data.source.files import File, find_files, read_whole, size_of
from posrec.data.source.log import as_frame, is_path
from posrec.data.source.readers.columns import (
    COMMON_NAMES,
    comma_separated,
    find_common,
    normal_ids,
    plain_name,
)
from posrec.data.source.readers.parquet import POLARS_ERRORS, scan_bounded
from posrec.errors import InputError, first_line
from posrec.progress import Progress

ID_NAMES = ("id", *COMMON_NAMES["item"])
PACKED = (".gz", ".zst", ".bz2", ".xz")
SLICE = 10_000
TITLE_NAMES = ("title", "name", "itemname", "productname", "label")


class ItemFile(NamedTuple):
    path: File | str
    rows: pl.DataFrame
    id_columns: list[str]  # the columns that may hold the item ids, the likeliest first
    notes: list[str]  # how columns were read

    def __str__(self) -> str:
        return str(self.path)

    def by_known_id(self, ids: list[str], progress: Progress) -> pl.DataFrame:
        """As `by_id`, for the ids that a run knows."""
        return self.by_id(pl.Series(ids, dtype=pl.String), progress)

    def by_id(self, items: pl.Series, progress: Progress) -> pl.DataFrame:
        """The first row of each item; `id` is the column that has most of the log's `items`."""

        def clicked_items(name: str) -> int:
            return int(self.rows[name].is_in(items.implode()).sum())

        file = getattr(self.path, "name", self.path)
        id_column = max(self.id_columns, key=clicked_items)
        progress.message(f"{file}: column {id_column!r} read as the item id")
        rows = self.rows
        if id_column != "id" and "id" in rows.columns:
            rows = rows.drop("id")
            progress.message(
                f"{file}: column 'id' is left out, because it holds other ids"
            )
        rows = rows.rename({id_column: "id"})
        for note in self.notes:
            progress.message(f"{file}: {note}")
        # JSON has no NaN. Dates and similar types become text when the vocabulary is written.
        numbers = pl.selectors.float()
        rows = rows.with_columns(pl.when(numbers.is_finite()).then(numbers))
        rows = rows.filter(pl.col("id").is_not_null())
        first = rows.unique("id", keep="first", maintain_order=True)
        if repeated := len(rows) - len(first):
            progress.message(
                f"{file}: {repeated:,} of {len(rows):,} rows have the id of an earlier row, "
                "which is kept"
            )
        return first


def columns_for(ids: list[str], about_items: pl.DataFrame) -> dict[str, list[Any]]:
    """The columns for these items, in this order, as JSON has them; None where nothing is known."""
    items = pl.DataFrame({"id": ids}, schema={"id": pl.String})
    rows = items.join(about_items, on="id", how="left", maintain_order="left")
    names = [name for name in rows.columns if name != "id"]
    return {name: as_in_json(in_slices(rows[name])) for name in names}


def as_in_json(values: list[Any]) -> list[Any]:
    """Dates and similar values as texts."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, str | int | float | None):
        return values
    return [json.loads(json.dumps(value, default=str)) for value in values]


def in_slices(column: pl.Series) -> list[Any]:
    """`to_list` of a whole column would block a server's other threads."""
    starts = range(0, len(column), SLICE)
    return [value for start in starts for value in column.slice(start, SLICE).to_list()]


def read_items(
    source: Any,
    id_column: str | None = None,
    normalize_ids: bool = False,
    **times: Unpack[ItemTimes],
) -> ItemFile:
    if not is_path(source):
        rows = with_times("items", as_frame(source).collect(), times)
        return described("items", rows, id_column, normalize_ids)
    path = find_files(source)[0]
    data = io.BytesIO(read_whole(path))
    endings = PurePath(path.name.lower()).suffixes
    kinds = [ending[1:] for ending in endings if ending not in PACKED] or ["csv"]
    kind = kinds[-1]
    try:
        if kind == "parquet":
            rows = scan_bounded(path, data, size_of(path)).collect()
        elif kind in ("jsonl", "ndjson"):
            rows = pl.read_ndjson(data, infer_schema_length=None)
        else:
            header = data.readline()
            data.seek(0)
            separator = max(",;\t|", key=lambda sign: header.count(sign.encode()))
            rows = pl.read_csv(data, separator=separator, infer_schema=False)
    except POLARS_ERRORS as error:
        raise InputError(
            f"{path} can't be read as {kind}: {first_line(error)}"
        ) from None
    rows = with_times(path, rows, times)
    return described(path, rows, id_column, normalize_ids)


def with_times(path: File | str, rows: pl.DataFrame, times: ItemTimes) -> pl.DataFrame:
    """The rows with the columns `created` and `expires`, whose values are checked."""
    names = (times.get("created_column"), times.get("expires_column"))
    for name, column in zip((CREATED, EXPIRES), names, strict=True):
        if column and column not in rows.columns:
            raise InputError(
                f"{path} has no column {column!r} (--{name}-column); it has "
                f"{comma_separated(rows.columns)}"
            )
        if column and column != name:
            rows = rows.drop(name, strict=False).rename({column: name})
        if name in rows.columns:
            read_moments(f"{path}: column {name!r}", rows[name])
    return rows


def described(
    path: File | str, rows: pl.DataFrame, id_column: str | None, normalize_ids: bool
) -> ItemFile:
    """The rows with one type for a column, whatever the file's format."""
    likely = find_ids(rows)
    id_columns = likely if id_column is None else [id_column]
    if not set(id_columns) & set(rows.columns):
        missing = "that looks like an item id (id, item_id, sku, ...)"
        if id_column is not None:
            missing = f"{id_column!r}"
        raise InputError(
            f"{path} has no column {missing}; name one of these with --items-id-column: "
            f"{comma_separated(rows.columns)}"
        )
    ids = pl.col({*likely, *id_columns}).cast(pl.String)
    rows = rows.with_columns(normal_ids(ids) if normalize_ids else ids)
    notes = []
    title = find_common(rows.columns, TITLE_NAMES)
    if title and title not in id_columns and "title" not in rows.columns:
        rows = rows.rename({title: "title"})
        notes.append(f"column {title!r} read as the title")
    for name in rows.columns:
        if name not in (*likely, *id_columns):
            column, note = typed(rows[name])
            rows = rows.with_columns(column)
            notes += [note] if note else []
    return ItemFile(path, rows, id_columns, notes)


def find_ids(rows: pl.DataFrame) -> list[str]:
    """The columns that may hold ids, the likeliest first; `product` may be an object."""
    names = [
        name
        for name, type in rows.schema.items()
        if plain_name(name) in ID_NAMES and not type.is_nested()
    ]
    return sorted(names, key=lambda name: ID_NAMES.index(plain_name(name)))
