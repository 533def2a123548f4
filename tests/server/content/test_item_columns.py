"""`posrec serve --items FILE`: columns that change while they are served, for filters, boosts,
rules and answers."""

import gzip
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posrec.data.items import columns_for
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.plan import Plan
from posrec.server.content.item_columns import ItemColumns, read_columns
from posrec.server.content.reload import WatchedFile
from tests.helpers import command, refused, write_lines
from tests.server.asgi import in_process
from tests.server.asking import Asker
from tests.server.server_process import serving, until

BATCH = "/v1/recommend/batch"


def write_items(path: Path, in_stock: set[int], title: str = "Tent") -> None:
    """Replaced by a renamed file, as the page advises."""
    rows = [
        f"i{n},{title} {n},{n + 1},{int(n in in_stock)},b{n % 2}" for n in range(30)
    ]
    lines = ["sku,title,price,stock,brand", *rows, "i99,Unknown,1,1,b1"]
    new = path.with_name("new.csv")
    new.write_text("\n".join(lines) + "\n")
    new.replace(path)


def in_stock(server: Asker) -> set[int]:
    answer = server.recommend("i3", k=100, filter={"stock": {"min": 1}})
    return {int(item[1:]) for item in answer.items}


def titled(server: Asker, query: str) -> list[str]:
    return server.get(f"/v1/items?query={query}").items


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "items.csv"
    write_items(path, {1, 2, 3})
    return path


def test_the_option_of_the_command(trained_with_export: Path, path: Path) -> None:
    with serving(trained_with_export, "--items", path, onnx=True) as server:
        assert in_stock(server) == {1, 2, 3}
        write_items(path, {4, 5})
        until(lambda: in_stock(server) == {4, 5})


@pytest.mark.usefixtures("frequent_polls")
def test_stock_and_prices_change_while_they_are_served(
    trained: Path, path: Path
) -> None:
    with in_process(trained, items_file=str(path)) as server:
        assert in_stock(server) == {1, 2, 3}
        columns = server.get("/v1/run").json()["columns"]
        assert columns == ["title", "price", "stock", "brand"]
        assert titled(server, "tent%2012")[0] == "i12"
        (line,) = server.logged("items read")
        counts = (line["known"], line["new"], line["left_out"])
        assert (*counts, line["file"]) == (30, 0, 1, str(path))
        assert "trained without attributes" in line["reason"]
        write_items(path, {4, 5}, "Yurt")
        until(lambda: in_stock(server) == {4, 5})
        pinned = server.recommend("i3", k=1, pin=["i7"], fields=["price", "stock"])
        (item,) = pinned.json()["items"]
        assert item["title"] == "Yurt 7"
        assert item["fields"] == {"price": 8, "stock": 0}
        assert titled(server, "yurt%2012")[0] == "i12"
        assert titled(server, "tent") == []
        boosted = server.recommend("i3", k=2, boost={"stock": {"1": 1000}})
        assert set(boosted.items) == {"i4", "i5"}
        assert len(server.recommend("i3", k=9, diversify="stock").items) == 2
        similar = server.get("/v1/similar/i3?filter=%7B%22stock%22:%221%22%7D")
        assert set(similar.items) == {"i4", "i5"}


@pytest.mark.usefixtures("frequent_polls")
def test_what_was_read_stays_while_the_file_is_damaged_and_for_another_run(
    trained: Path, counted: Path, path: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    failure = f"{path} could not be read again; what was read before stays"
    with in_process(run, items_file=str(path)) as server:
        path.write_bytes(path.read_bytes()[:-30])  # the rest is still to be written
        until(lambda: server.logged(failure))
        assert in_stock(server) == {1, 2, 3}
        run.rename(tmp_path / "aside")
        shutil.copytree(counted, run)
        until(lambda: server.get("/v1/run").json()["model"] == "pop")
        assert in_stock(server) == {1, 2, 3}
        write_items(path, {6})
        until(lambda: in_stock(server) == {6})
        assert len(server.logged(failure)) == 1


@pytest.mark.usefixtures("frequent_polls")
def test_rows_that_the_training_did_not_see_are_items_while_the_file_has_them(
    described_run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "items.csv"
    known = [f"i{number},,," for number in range(12)]
    rows = ["id,category,title,price", *known, "m0,tents,Old tent,5"]
    write_lines(path, rows)
    with in_process(described_run, onnx=True, items_file=str(path)) as server:
        assert server.recommend("m0").json()["unknown"] == []
        assert server.recommend("m1").json()["unknown"] == ["m1"]
        rows += ["m1,mats,Blue mat,7", "m2,kites,Kite,1"]
        write_lines(path, rows)
        until(lambda: server.recommend("m1").json()["unknown"] == [])
        answer = server.recommend("m0", k=1, allow=["m1", "i3"], fields=["price"])
        (item,) = answer.json()["items"]
        assert (item["item"], item["title"]) == ("m1", "Blue mat")
        assert str(item["fields"]["price"]) == "7"
        cheap = server.recommend("i0", filter={"price": {"below": 6}})
        assert cheap.items == ["m0"]
        why = server.post("/v1/explain", {"session": ["m0"], "item": "m1"})
        assert why.json()["score"] == pytest.approx(item["score"], abs=1e-4)
        assert titled(server, "blue") == ["m1"]
        # A tent without clicks was known at the training.
        assert server.get("/v1/similar/m0?k=1").items == ["n0"]
        line = server.logged("items read")[-1]
        assert (line["known"], line["new"], line["left_out"]) == (12, 2, 1)
        write_lines(path, rows[:-3] + rows[-2:])
        until(lambda: server.recommend("m0").json()["unknown"] == ["m0"])
        assert server.recommend("m1").json()["unknown"] == []
        assert titled(server, "tent") == []


def test_a_file_of_other_ids_changes_nothing_and_is_logged(
    trained: Path, path: Path
) -> None:
    path.write_text("sku,stock\nx1,1\n")
    with in_process(trained, items_file=str(path)) as server:
        (line,) = server.logged("items read")
        assert (line["level"], line["known"], line["left_out"]) == ("warning", 0, 1)
        assert server.recommend("i3").status == 200
        assert server.get("/v1/run").json()["columns"] == []


@pytest.mark.usefixtures("frequent_polls")
def test_expired_items_are_not_recommended(trained: Path, tmp_path: Path) -> None:
    """i0 to i9 have expired, and i10 to i19 will."""
    path = tmp_path / "items.csv"
    ends = ["2001-01-01", "2101-01-01", ""]

    def write(ends: list[str]) -> None:
        rows = [f"i{n},{ends[n // 10]},{n % 2}" for n in range(30)]
        path.write_text("\n".join(["id,until,brand", *rows, ""]))

    def asked(server: Asker, session: list[str], **more: Any) -> set[int]:
        more = {"k": 100, "pin": ["i3", "i13", "i23"], **more}
        answer = server.recommend(*session, **more)
        batch = server.post(BATCH, {"sessions": [session], **more}).json()["answers"][0]
        assert [item["item"] for item in batch["items"]] == answer.items
        assert not answer.json()["unknown"]
        return {int(item[1:]) for item in answer.items}

    def similar(server: Asker, query: str) -> set[int]:
        items = server.get(f"/v1/similar/i3?k=100{query}").items
        return {int(item[1:]) for item in items}

    write(ends)
    every = set(range(30))
    times = {"expires_column": "until", "created_column": None}
    store = f"sqlite:{tmp_path / 'sessions.sqlite'}"
    options: dict[str, Any] = {"items_file": str(path), "item_times": times}
    with in_process(trained, session_store=store, **options) as server:
        for session in (["i3", "i4"], []):
            boost = {"brand": {"1": 2.0}}
            now = every - set(range(10))
            assert asked(server, session) == now
            assert asked(server, session, boost=boost, deny=["i20"]) == now - {20}
            assert asked(server, session, now="2000-12-31T23:59:59Z") == every
            assert asked(server, session, now=978_307_200) == now
            assert asked(server, session, now="2101-01-01") == set(range(20, 30))
        assert similar(server, "") == now
        assert similar(server, "&now=2000-01-01") == every - {3}
        clicked = server.post("/v1/sessions/s/click", {"item": "i3", "k": 100})
        assert {int(item[1:]) for item in clicked.items} == now
        write(["soon", *ends[1:]])
        failure = f"{path} could not be read again; what was read before stays"
        until(lambda: server.logged(failure))
        assert asked(server, ["i3"]) == now
        write(ends[::-1])
        # Between two requests the file may be read.
        until(lambda: "i20" not in server.recommend("i3", k=100).items)
        assert asked(server, ["i3"]) == set(range(20))


def test_a_column_of_times_that_the_file_does_not_have_is_refused(
    trained: Path, path: Path
) -> None:
    asked = ("serve", trained, "--items", path, "--created-column", "since")
    assert "has no column 'since' (--created-column); it has sku, title" in refused(
        *asked
    )
    assert "columns of --items" in refused("serve", trained, "--expires-column", "x")


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        (b"", "empty"),
        (b"name,stock\na,1\n", "column"),
        (b"sku,stock\n", "rows"),
    ],
)
def test_a_file_that_is_no_good_is_refused_at_the_start(
    trained: Path, path: Path, content: bytes, keyword: str
) -> None:
    path.write_bytes(content)
    done = command("serve", trained, "--items", path)
    assert done.code == 2, done.err
    assert keyword in done.err


@pytest.fixture
def catalogue() -> Catalogue:
    """Items a and b; c is in the vocabulary, but the model does not know it."""
    columns: dict[str, list[Any]] = {
        "stock": [7, 8, 9],
        "colour": ["red", "blue", None],
    }
    return Catalogue(Vocabulary(["a", "b", "c"], columns), 2)


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
    columns = columns_in(path)
    assert columns == {"stock": [None, 2]}
    together = {**catalogue.vocabulary.columns, **columns}
    attributes = catalogue.with_columns(together).attributes
    assert attributes.matching({"stock": [2]}).tolist() == [False, True]
    # An item without a row has no value any more.
    assert attributes.matching({"stock": [7]}).tolist() == [False, False]
    assert attributes["colour"] is catalogue.attributes["colour"]


def columns_in(path: Path) -> dict[str, list[Any]]:
    """For a run that knows the items a and b."""
    rows = read_columns(path, None).rows(["a", "b"])
    return columns_for(["a", "b"], rows)


def test_dates_are_texts_as_in_a_run(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    day = date(2026, 5, 1)
    rows = {"id": ["a", "b"], "day": [day, None], "days": [[day, None], [day]]}
    pl.DataFrame(rows).write_parquet(path)
    columns = columns_in(path)
    text = "2026-05-01"
    assert columns == {"day": [text, None], "days": [[text, None], [text]]}


def test_a_file_that_is_likely_half_of_itself_is_refused(path: Path) -> None:
    """Ids count that the run knows, each once."""
    ids = [f"i{number}" for number in range(100)]
    text = "id,stock\n" + "".join(f"{id},1\n" for id in ids)
    path.write_text(text)
    watched = WatchedFile(str(path), read_columns, ItemColumns.count_known)
    watched.catalogue = Catalogue(Vocabulary(ids, {}), 100)
    watched.read()
    half = text[: text.index("i49")]
    for content, keyword in (
        (text[:-1], "middle of a line"),
        (half, "half of the 100"),
        (half + 51 * "i7,1\n", "half of the 100"),
        (half + "".join(f"x{number},1\n" for number in range(51)), "half of the 100"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=keyword):
            watched.read()
    path.write_text(text[: text.index("i60")])
    watched.read()
    assert len(watched.content.file.rows) == 60
    # A first file may end in the middle of a line, and later ones too.
    path.write_text("id,stock\na,1")
    assert not read_columns(path, read_columns(path, None)).ends_with_line


def test_a_request_has_the_columns_of_one_moment_and_no_kept_result_of_another(
    catalogue: Catalogue,
) -> None:
    def plan(catalogue: Catalogue) -> Plan:
        boost = {"stock": {"8": 2.0}}
        rule = {"stock": {"min": 8}}
        return Plan(catalogue, None, filter=rule, boost=boost, fields=["stock"])

    def candidates(plan: Plan) -> Any:
        return plan.candidates.few.tolist()

    before = plan(catalogue)
    changed = catalogue.with_rules(None, ["nothing"]).with_columns({"stock": [9, 1]})
    after = plan(changed)
    assert (candidates(before), candidates(after)) == ([1], [0])
    assert (before.fields, after.fields) == ({"stock": [7, 8]}, {"stock": [9, 1]})
    assert (len(before.by_factor), len(after.by_factor)) == (2, 1)
    earlier = changed.with_columns(catalogue.vocabulary.columns)
    assert candidates(plan(earlier)) == [1]
