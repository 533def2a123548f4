"""`posrec serve --items FILE`: columns that change while they are served, for filters, boosts,
rules and answers."""

import gzip
import shutil
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.plan import Plan
from posrec.server.content.item_columns import read_columns
from tests.helpers import command
from tests.server.server_process import Answer, Server, serving, until

pytest.importorskip("granian")

NUMBERS = range(30)


def write(
    path: Path,
    in_stock: set[int],
    words: str = "Tent",
    columns: str = "sku,title,price,stock,brand",
) -> None:
    """Renamed, as the page advises."""
    rows = [f"i{n},{words} {n},{n + 1},{int(n in in_stock)},b{n % 2}" for n in NUMBERS]
    new = path.with_name("new.csv")
    new.write_text("\n".join([columns, *rows, "i99,Unknown,1,1,b1"]) + "\n")
    new.replace(path)


def items(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [one["item"] for one in answer.json()["items"]]


def in_stock(server: Server) -> set[int]:
    return {
        int(item[1:])
        for item in items(server.recommend("i3", k=100, filter={"stock": {"min": 1}}))
    }


def failures(server: Server, path: Path) -> list[str]:
    return [
        line["reason"]
        for line in server.said(
            f"{path} could not be read again; what was read before stays"
        )
    ]


def test_stock_and_prices_change_while_they_are_served(
    trained: Path, counted: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    path = tmp_path / "items.csv"
    write(path, {1, 2, 3})
    with serving(run, "--items", path) as server:
        assert in_stock(server) == {1, 2, 3}
        assert server.ask("GET", "/v1/run").json()["columns"] == [
            "title",
            "price",
            "stock",
            "brand",
        ]
        assert (
            server.ask("GET", "/v1/items?query=tent%2012").json()["items"][0]["item"]
            == "i12"
        )
        (line,) = server.said("items read")
        assert (line["known"], line["unknown"], line["file"]) == (30, 1, str(path))
        write(path, {4, 5}, "Yurt")
        until(lambda: in_stock(server) == {4, 5})
        answer = server.recommend(
            "i3", k=1, pin=["i7"], fields=["price", "stock"]
        ).json()["items"][0]
        assert (answer["title"], answer["fields"]) == (
            "Yurt 7",
            {"price": "8", "stock": "0"},
        )
        assert (
            server.ask("GET", "/v1/items?query=yurt%2012").json()["items"][0]["item"]
            == "i12"
        )
        assert server.ask("GET", "/v1/items?query=tent").json()["items"] == []
        boosted = items(server.recommend("i3", k=2, boost={"stock": {"1": 1000}}))
        assert {*boosted} == {"i4", "i5"}
        assert len(items(server.recommend("i3", k=9, diversify="stock"))) == 2
        assert {
            *items(server.ask("GET", "/v1/similar/i3?filter=%7B%22stock%22:%221%22%7D"))
        } == {"i4", "i5"}

        path.write_bytes(path.read_bytes()[:-30])  # the rest is still to be written
        until(lambda: failures(server, path))
        assert in_stock(server) == {4, 5}

        run.rename(tmp_path / "aside")
        shutil.copytree(counted, run)
        until(lambda: server.ask("GET", "/v1/run").json()["model"] == "pop")
        assert in_stock(server) == {
            4,
            5,
        }  # what was read before holds for the new run too

        write(path, {6})
        until(lambda: in_stock(server) == {6})
        assert len(failures(server, path)) == 1


def test_a_file_of_other_ids_changes_nothing_and_is_logged(
    trained: Path, tmp_path: Path
) -> None:
    path = tmp_path / "items.csv"
    path.write_text("sku,stock\nx1,1\n")
    with serving(trained, "--items", path) as server:
        (line,) = server.said("items read")
        assert (line["level"], line["known"], line["unknown"]) == ("warning", 0, 1)
        assert server.recommend("i3").status == 200
        assert server.ask("GET", "/v1/run").json()["columns"] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"name,stock\na,1\n", "no column"),
        (b"sku,stock\n", "no rows"),
    ],
)
def test_a_file_that_is_no_good_is_refused_at_the_start(
    trained: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "items.csv").write_bytes(content)
    done = command("serve", trained, "--items", tmp_path / "items.csv")
    assert (done.code, message in " ".join(done.err.split())) == (2, True), done.err


@pytest.fixture
def catalogue() -> Catalogue:
    """Items a and b; c is in the vocabulary, but the model does not know it."""
    return Catalogue(
        Vocabulary(
            ["a", "b", "c"], {"stock": [7, 8, 9], "colour": ["red", "blue", None]}
        ),
        2,
    )


@pytest.mark.parametrize("ending", ["csv.gz", "jsonl", "parquet"])
def test_what_prepare_reads_is_read(
    catalogue: Catalogue, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"items.{ending}"
    rows = pl.DataFrame({"id": ["b", "zz"], "stock": [2, 1]})
    if ending == "parquet":
        rows.write_parquet(path)
    elif ending == "jsonl":
        rows.write_ndjson(path)
    else:
        path.write_bytes(gzip.compress(rows.write_csv().encode()))
    columns, about = read_columns(path, None).columns(catalogue)
    assert columns == {"stock": [None, "2" if ending == "csv.gz" else 2]}
    assert about == {"known": 1, "unknown": 1, "columns": ["stock"]}
    changed = catalogue.with_columns(columns)
    assert changed.attributes.matching({"stock": [2]}).tolist() == [False, True]
    assert changed.attributes.matching({"stock": [7]}).tolist() == [
        False,
        False,
    ]  # without a row, without a value
    assert changed.attributes["colour"] is catalogue.attributes["colour"]


def test_dates_are_texts_as_in_a_run(catalogue: Catalogue, tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    days = [date(2026, 5, 1), None]
    pl.DataFrame(
        {"id": ["a", "b"], "day": days, "days": [days, [days[0]]]}
    ).write_parquet(path)
    columns, _ = read_columns(path, None).columns(catalogue)
    assert columns == {
        "day": ["2026-05-01", None],
        "days": [["2026-05-01", None], ["2026-05-01"]],
    }


def test_a_file_that_is_likely_half_of_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text("id,stock\n" + "".join(f"i{n},1\n" for n in range(100)))
    whole = read_columns(path, None)
    text = path.read_text()
    for half, reason in (
        (text[:-1], "the middle of a line"),
        (text[: text.index("i49")], "fewer than half of the 100"),
    ):
        path.write_text(half)
        with pytest.raises(InputError, match=reason):
            read_columns(path, whole)
    path.write_text(text[: text.index("i60")])
    assert len(read_columns(path, whole).file.rows) == 60
    path.write_text(
        "id,stock\na,1"
    )  # a first file may end like this, and later ones too
    assert not read_columns(path, read_columns(path, None)).ends_with_line


def test_a_request_has_the_columns_of_one_moment_and_no_kept_result_of_another(
    catalogue: Catalogue,
) -> None:
    wanted = {"stock": {"min": 8}}
    boost = {"stock": {"8": 2.0}}
    before = Plan(catalogue, None, filter=wanted, boost=boost, fields=["stock"])
    changed = catalogue.with_rules(None, ["nothing"]).with_columns({"stock": [9, 1]})
    after = Plan(changed, None, filter=wanted, boost=boost, fields=["stock"])
    assert [plan.candidates.few.tolist() for plan in (before, after)] == [[1], [0]]
    assert [plan.fields for plan in (before, after)] == [
        {"stock": [7, 8]},
        {"stock": [9, 1]},
    ]
    assert [len(plan.by_factor) for plan in (before, after)] == [2, 1]
    assert Plan(
        changed.with_columns({}), None, filter=wanted
    ).candidates.few.tolist() == [1]  # type: ignore[union-attr]
