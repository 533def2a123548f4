"""The columns of an items file reach the vocabulary."""

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import posrec
from posrec.data.item_times import item_times
from posrec.data.item_types import typed
from posrec.data.items import columns_for, read_items
from posrec.errors import InputError
from posrec.progress import SilentProgress
from tests.data.reading import prepared
from tests.helpers import (
    RecordingProgress,
    command,
    frame,
    packed,
    small_shop,
    write_lines,
    write_log,
)

IDS = ["007", "x", "é"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl", "csv.gz"])
def test_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    titles = ["Tent, red", "Boot", "twice", "none"]
    table = pl.DataFrame({"sku": ["x", "007", "x", None], "Name": titles})
    path = tmp_path / f"items.{kind}"
    if kind == "parquet":
        table.write_parquet(path)
    elif kind == "jsonl":
        table.write_ndjson(path)
    elif kind == "csv.gz":
        path.write_bytes(packed(table.write_csv().encode(), "gzip"))
    else:
        table.write_csv(path, separator="\t" if kind == "tsv" else ",")
    progress = RecordingProgress()
    items = read_items(path).by_id(pl.Series(IDS), progress)
    assert columns_for(IDS, items) == {"title": ["Boot", "Tent, red", None]}
    assert progress.messages == [
        f"items.{kind}: column 'sku' read as the item id",
        f"items.{kind}: column 'Name' read as the title",
        f"items.{kind}: 1 of 3 rows have the id of an earlier row, which is kept",
    ]


def test_columns_of_any_type_reach_the_prepared_vocabulary(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "title": ["A", "B", None],
        "price": [1.5, float("nan"), None],
        "stock": [1, 2, 3],
        "since": [date(2026, 1, 2)] * 3,
        "tags": [["a"], [], None],
        "new": [True, False, None],
    }
    items = tmp_path / "items.parquet"
    pl.DataFrame({"id": ["i0", "i1", "i2"], **columns}).write_parquet(items)
    log = write_log(tmp_path / "c.csv", small_shop())
    vocabulary = posrec.prepare(log, "csv", tmp_path / "out", items=items).vocabulary
    assert vocabulary.ids == ["i0", "i1", "i2", "i3"]
    columns |= {"price": [1.5, None, None], "since": ["2026-01-02"] * 3}
    expected = {name: [*values, None] for name, values in columns.items()}
    assert vocabulary.columns == expected
    titles = [vocabulary.title(number) for number in (1, 2, 3, 4)]
    assert titles == ["A", "B", "i2", "i3"]


def test_a_table_of_items(tmp_path: Path) -> None:
    clicks = frame(small_shop())
    items = pl.DataFrame(
        {"sku": ["i1", "i9"], "Name": ["Tent", "Mat"], "price": [9.5, None]}
    )
    expected = {
        "title": [None, "Tent", None, None, "Mat"],
        "price": [None, 9.5, None, None, None],
    }
    for table in (items, items.lazy(), items.to_pandas(), items.to_arrow()):
        progress = RecordingProgress()
        out = tmp_path / "out"
        data = prepared(clicks, out, progress, items=table, all_items=True)
        assert data.vocabulary.ids == ["i0", "i1", "i2", "i3", "i9"]
        assert data.vocabulary.columns == expected
        assert "items: column 'sku' read as the item id" in progress.messages
        assert "items: describes 2 of 5 items" in progress.messages
    with pytest.raises(InputError, match="no column that looks like an item id"):
        posrec.prepare(clicks, out=tmp_path / "no", items=items.select("price"))
    with pytest.raises(InputError, match=r"not builtins\.dict"):
        posrec.prepare(clicks, out=tmp_path / "no", items={"id": ["i1"]})


def test_the_ids_are_in_the_column_that_has_those_of_the_log(tmp_path: Path) -> None:
    lines = ["id,ID,item_id,Title,title", "1,5,2,A,a", "2,6,3,B,b"]
    file = read_items(write_lines(tmp_path / "items.csv", lines))
    progress = RecordingProgress()
    columns = columns_for(["2", "3"], file.by_id(pl.Series(["2", "3"]), progress))
    assert columns == {"ID": ["5", "6"], "Title": ["A", "B"], "title": ["a", "b"]}
    assert progress.messages == [
        "items.csv: column 'item_id' read as the item id",
        "items.csv: column 'id' is left out, because it holds other ids",
    ]
    by_number = file.by_id(pl.Series(["1"]), progress)
    assert columns_for(["1"], by_number)["item_id"] == ["2"]
    by_other_id = file.by_id(pl.Series(["5", "6"]), progress)
    assert columns_for(["6"], by_other_id)["title"] == ["b"]


TYPED: dict[str, list[Any]] = {
    "price": [8.73, 12.0, None],
    "stock": [3, 0, None],
    "code": ["01", "10", None],  # not numbers, which have no zeros before them
    "new": [True, False, None],
    "title": ["1984", "A & B", None],
}


def write_items(path: Path) -> Path:
    """TYPED, with types as each kind of file has them."""
    table = pl.DataFrame({"sku": ["007", "8", "9"], **TYPED}).with_columns(
        pl.col("title").str.replace("&", "&amp;")
    )
    if path.suffix == ".parquet":
        table.with_columns(pl.col("price").cast(pl.Decimal(9, 2))).write_parquet(path)
    elif path.name == "float.jsonl":
        table.write_ndjson(path)
    elif path.suffix == ".jsonl":
        table.with_columns(pl.col("price", "stock").cast(pl.String)).write_ndjson(path)
    else:
        separator = ";" if path.name == "decimal.csv" else ","
        table.write_csv(path, separator=separator, decimal_comma=separator == ";")
    return path


@pytest.mark.parametrize(
    "name", ["a.csv", "decimal.csv", "float.jsonl", "text.jsonl", "a.parquet"]
)
def test_the_types_are_those_of_the_values_whatever_the_file(
    tmp_path: Path, name: str
) -> None:
    progress = RecordingProgress()
    ids = ["007", "8", "9"]
    rows = read_items(write_items(tmp_path / name)).by_id(pl.Series(ids), progress)
    columns = columns_for(ids, rows)
    assert columns == TYPED
    for column, values in columns.items():
        kinds = [type(value) for value in TYPED[column]]
        assert [type(value) for value in values] == kinds, column
    assert f"{name}: HTML entities decoded in 1 title" in progress.messages
    commas = f"{name}: column 'price' read as numbers with decimal commas, such as 8,73"
    assert (commas in progress.messages) == (name == "decimal.csv")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["8,73", "1.299,00", "5"], [8.73, 1299.0, 5.0]),
        (["1,299", "12,500"], ["1,299", "12,500"]),  # thousands, or three decimals
        (["8,73", "8.73"], ["8,73", "8.73"]),
        (["8.73", "n/a"], ["8.73", "n/a"]),
        (["-1", " 2", ""], [-1, 2, None]),
        (["1" * 15, "2"], [111_111_111_111_111, 2]),
        (["1" * 16, "2"], ["1" * 16, "2"]),  # a float would not keep its digits
        (["TRUE", "false"], [True, False]),
        (["", ""], [None, None]),
        (["0.5", "0"], [0.5, 0.0]),
        (["00.5", "1"], ["00.5", "1"]),
    ],
)
def test_the_type_of_a_column_of_text(texts: list[str], expected: list[Any]) -> None:
    values = typed(pl.Series("amount", texts))[0].to_list()
    assert values == expected
    assert list(map(type, values)) == list(map(type, expected))


def test_numbers_of_single_precision_keep_their_digits() -> None:
    column, _ = typed(pl.Series("price", [8.73, None], dtype=pl.Float32))
    assert column.to_list() == [8.73, None]


def test_the_id_column_can_be_named(tmp_path: Path) -> None:
    lines = ["id,artikel,sku", "1,i0,x", "2,i1,y", "3,i2,z"]
    items = write_lines(tmp_path / "items.csv", lines)
    log = write_log(tmp_path / "c.csv", small_shop())
    out = tmp_path / "out"
    options = ("--items", items, "--items-id-column", "artikel", "--out", out)
    done = command("prepare", log, *options)
    assert done.code == 0, done.err
    assert "items.csv: column 'artikel' read as the item id" in done.err
    assert posrec.load(out).vocabulary.columns == {"sku": ["x", "y", "z", None]}
    with pytest.raises(
        InputError, match=r"no column 'nr'; name one of these with --items-id-"
    ):
        prepared(log, out, items=items, items_id_column="nr")
    with pytest.raises(InputError, match="--items-id-column needs --items"):
        prepared(log, out, items_id_column="nr")


def test_an_object_is_no_id(tmp_path: Path) -> None:
    line = '{"id": 7, "product": {"name": "Tent"}}'
    file = read_items(write_lines(tmp_path / "items.jsonl", [line]))
    rows = file.by_id(pl.Series(["7"]), SilentProgress())
    assert columns_for(["7"], rows) == {"product": [{"name": "Tent"}]}


def test_a_file_without_ids_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"like an item id .*-id-column: colour, price"
    ):
        read_items(write_lines(tmp_path / "items.csv", ["colour,price", "red,1"]))
    with pytest.raises(InputError, match="not a Parquet file"):
        read_items(write_lines(tmp_path / "items.parquet", ["id,title"]))
    with pytest.raises(InputError, match="does not exist"):
        read_items(tmp_path / "none.csv")


MOMENTS = ["2026-11-20", "2026-11-20T10:00:00Z", None]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([*MOMENTS, ""], [*MOMENTS, None]),
        (["2026-11-20 10:00", "2026-11-20 10:00:00+02:00"], None),
        (["1795176000", "1795176000"], [1795176000, 1795176000]),
        ([1_795_176_000_000, None], None),
        ([1_795_176_000.5, float("nan")], [1_795_176_000.5, None]),
        ([date(2026, 1, 2), None], None),
    ],
)
def test_columns_of_times_are_checked_and_kept(
    values: list[Any], kept: list[Any] | None
) -> None:
    ids = [str(number) for number in range(len(values))]
    table = pl.DataFrame({"id": ids, "since": values, "until": values})
    times = item_times(table, "since", "until")
    rows = read_items(table, **times).by_id(pl.Series(ids), SilentProgress())
    assert rows.columns == ["id", "created", "expires"]
    assert rows["created"].to_list() == (kept or values)


def test_times_that_can_not_be_read_are_refused(tmp_path: Path) -> None:
    lines = ["id,expires,until", "a,2026-11-20,2026-11-20", "b,31/12/26,"]
    path = write_lines(tmp_path / "items.csv", lines)
    with pytest.raises(
        InputError, match=r"items.csv: column 'expires' holds '31/12/26'"
    ):
        read_items(path)
    rows = read_items(path, expires_column="until").rows
    assert rows.to_dict(as_series=False) == {
        "id": ["a", "b"],
        "expires": ["2026-11-20", None],
    }
    with pytest.raises(
        InputError, match=r"no column 'x' \(--created-column\); it has id, exp"
    ):
        read_items(path, created_column="x")
    with pytest.raises(InputError, match="are columns of --items"):
        item_times(None, None, "until")
