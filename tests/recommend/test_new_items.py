"""Items that the training did not see, by their attributes: in Python, files and commands."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, strategies as st

from posrec.data.attribute_reader import AttributeReader
from posrec.io import ATTRIBUTES, write_checksums
from posrec.progress import SilentProgress
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import IndexSettings, build
from posrec.recommend.recommender import Recommender, open_recommender
from posrec.runs.attributes import Attributes
from posrec.runs.folder import EXPORT, FILES
from posrec.runs.new_items import find_new_items
from posrec.runs.run import load_run
from tests.helpers import RecordingProgress, command, refused, write_lines
from tests.recommend.rank.test_own_items import clusters

# m0 and m1 are a tent and a mat; nothing is known of m2.
ROWS = pl.DataFrame({
    "id": ["m0", "m1", "m2", "i1"],
    "category": ["tents", "mats", "kites", "mats"],
    "price": [5.0, 7.5, 9.0, 20.0],
})  # fmt: skip


@pytest.fixture(params=["ONNX Runtime", "torch"])
def known(request: pytest.FixtureRequest, described_run: Path) -> Recommender:
    return open_recommender(described_run, use_export=request.param != "torch")


@pytest.fixture
def recommender(known: Recommender) -> Recommender:
    return known.with_items(ROWS, SilentProgress())


def vectors_of(recommender: Recommender, item: str) -> list[Any]:
    """Those that are read, and those that are searched."""
    row = recommender.vocabulary.index(item) - 1
    assert recommender.similarity is not None
    table: Any = recommender.ranker.search.table  # type: ignore[attr-defined]
    return [recommender.similarity.vectors[row], table[row]]


def test_a_row_has_the_vector_of_the_same_row_at_the_training(
    recommender: Recommender,
) -> None:
    for new, same in (("m0", "n0"), ("m1", "n1")):
        pairs = zip(
            vectors_of(recommender, new), vectors_of(recommender, same), strict=True
        )
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_new_item_is_clicked_recommended_explained_and_filtered(
    known: Recommender, recommender: Recommender
) -> None:
    assert recommender.uses_onnx == known.uses_onnx
    assert known.recommend(["m0"]).unknown == ("m0",)
    # Tents are followed by mats, whichever tent was clicked.
    assert recommender.recommend(["i0"], k=1, allow=["m0", "m1"])[0].item == "m1"
    answer = recommender.recommend(["m0"], k=20)
    assert not answer.unknown
    as_n0 = recommender.recommend(["n0"], k=20)
    scores = {item.item: item.score for item in answer}
    others = scores.keys() - {"n0", "m0"}
    assert len(others) == 16
    for item in as_n0:
        if item.item in others:
            assert item.score == pytest.approx(scores[item.item], abs=1e-4)
    why = recommender.explain(["m0"], "m1")
    assert why.score == pytest.approx(scores["m1"], abs=1e-4)
    cheap = recommender.recommend(
        ["i0"], filter={"price": {"max": 8}}, fields=["price"]
    )
    assert {item.item for item in cheap} == {"m0", "m1"}
    assert {item.fields["price"] for item in cheap if item.fields} == {5.0, 7.5}
    assert recommender.similar_items("m0", k=1)[0].score == pytest.approx(1, abs=1e-5)
    assert recommender.similar_items("m0", k=1)[0].item == "n0"


def test_the_scores_are_those_of_the_extended_model(described_run: Path) -> None:
    run = load_run(described_run)
    run = find_new_items(run, ROWS).added_to(run)
    with torch.inference_mode():
        searched = run.model.item_vectors()
    recommender = open_recommender(described_run).with_items(ROWS, SilentProgress())
    table: Any = recommender.ranker.search.table  # type: ignore[attr-defined]
    np.testing.assert_allclose(table, searched.numpy(), atol=1e-5)
    assert run.config["items"] == recommender.items == 18
    assert run.popularity.tolist()[-2:] == [0, 0]


def test_what_can_not_be_used_is_said(known: Recommender, trained: Path) -> None:
    messages = RecordingProgress()
    known.with_items(ROWS, messages)
    assert any("none of their values of category" in line for line in messages.messages)
    without = open_recommender(trained)
    messages = RecordingProgress()
    rows = pl.DataFrame({"id": ["i1", "new"], "price": [3.0, 4.0]})
    with_prices = without.with_items(rows, messages)
    assert any("--set attributes=auto" in line for line in messages.messages)
    assert with_prices.items == without.items
    only = with_prices.recommend(["i0"], filter={"price": 3})
    assert [item.item for item in only] == ["i1"]


def test_the_same_items_with_other_prices_keep_the_search(
    known: Recommender, described_run: Path
) -> None:
    run = known.run
    first = known.with_found(run, find_new_items(run, ROWS))
    dearer = ROWS.with_columns(pl.col("price") + 1)
    second = first.with_found(run, find_new_items(run, dearer))
    assert second.ranker is first.ranker
    assert second.catalogue.attributes["price"].values[-2:] == [6.0, 8.5]
    assert first.catalogue.attributes["price"].values[-2:] == [5.0, 7.5]
    # A column that the file no longer has is gone.
    cheaper = first.with_found(run, find_new_items(run, ROWS.drop("price")))
    assert cheaper.ranker is first.ranker
    assert list(cheaper.catalogue.attributes.columns) == ["category"]
    # m0 is sold.
    third = second.with_found(run, find_new_items(run, dearer[1:]))
    assert third.vocabulary.ids[16:] == ["m1"]
    assert third.recommend(["m0"]).unknown == ("m0",)


def test_tables_are_added_one_after_the_other(known: Recommender) -> None:
    prices = pl.DataFrame({"id": ["i1", "i2"], "price": [3.0, 4.0]})
    mats = pl.DataFrame({"id": ["m3", "m0"], "category": ["mats", "mats"]})
    rec = known.with_items(prices, SilentProgress())
    rec = rec.with_items(ROWS.drop("price"), SilentProgress())
    rec = rec.with_items(mats.to_pandas(), SilentProgress())
    assert rec.vocabulary.ids[16:] == ["m0", "m1", "m3"]
    assert [item.item for item in rec.recommend([], filter={"price": 3})] == ["i1"]
    # m0 keeps the vector of a tent.
    assert rec.similar_items("m0", k=1)[0].item == "n0"
    assert rec.similar_items("m3", k=1, deny=["m1"])[0].item == "n1"


def test_commands_read_the_file(described_run: Path, tmp_path: Path) -> None:
    rows = ["id,category", "m0,tents", "m1,mats"]
    items = write_lines(tmp_path / "items.csv", rows)
    done = command("recommend", described_run, "m0", "--items", items, "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["unknown"] == []
    assert "m1" in [item["item"] for item in answer["items"]]
    sessions = write_lines(tmp_path / "sessions.jsonl", ['{"session": ["m0"]}'])
    allow = write_lines(tmp_path / "allow.txt", ["m1", "i9"])
    out = tmp_path / "answers.jsonl"
    done = command(
        "score", described_run, sessions, out, "--items", items, "--allow", allow
    )
    assert done.code == 0, done.err
    assert sorted(json.loads(out.read_text())["items"]) == ["i9", "m1"]


def test_a_saved_run_keeps_the_attributes(described_run: Path, tmp_path: Path) -> None:
    Recommender.load(described_run).save(tmp_path / "copy", export=False)
    before = (described_run / "attributes.safetensors").read_bytes()
    path = tmp_path / "copy" / "attributes.safetensors"
    kept = Attributes.parse(path.read_bytes(), path, 16)
    expected = Attributes.parse(before, path, 16)
    assert kept.reader.as_json() == expected.reader.as_json()
    np.testing.assert_array_equal(kept.of_values, expected.of_values)
    path.write_bytes(before[:-1])
    assert "attributes.safetensors" in refused("evaluate", tmp_path / "copy", "x")


def test_attributes_of_another_run_are_refused(
    described_run: Path, trained_plus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_plus, folder)
    shutil.copy(described_run / ATTRIBUTES, folder)
    write_checksums(folder, [*FILES, *EXPORT])
    assert "whose model has no attributes" in refused("recommend", folder, "i1")


COLUMNS: dict[str, dict[str, Any]] = {
    "category": {"name": "category", "kind": "category", "values": ["mats", "tents"]},
    "price": {"name": "price", "kind": "number", "values": [0, 1], "bounds": [3, 5.5]},
    "text": {"name": "text", "kind": "vector", "width": 3},
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("category", {}),
        ("category", {"kind": "colour"}),
        ("category", {"kind": ["category"]}),
        ("category", {"name": 5}),
        ("category", {"name": "price"}),
        ("category", {"values": ["mats", "mats"]}),
        ("category", {"values": [["mats"], ["tents"]]}),
        ("category", {"values": "ab"}),
        ("category", {"width": 2}),
        ("category", {"more": 1}),
        ("price", {"bounds": None}),
        ("price", {"bounds": [5.5, 3]}),
        ("price", {"bounds": [[3, 5.5]]}),
        ("price", {"bounds": {"3": "5.5"}}),
        ("text", {"width": "3"}),
        ("text", {"width": -3}),
        ("text", {"values": ["mats", "tents"]}),
    ],
)
def test_damaged_columns_are_refused(name: str, change: dict[str, Any]) -> None:
    of_values = np.ones((4, 5), np.float32)
    arrays = {"of_values": of_values, "map": of_values[:3]}
    columns = COLUMNS | {name: COLUMNS[name] | change}
    expected = pytest.raises((TypeError, ValueError)) if change else nullcontext()
    with expected:
        Attributes.of(arrays, {"columns": columns.values()}, 5)


@pytest.mark.parametrize(
    "of_values",
    [np.full((2, 5), 3e38, np.float32), np.ones((2, 5)), np.ones((2, 4), np.float32)],
)
def test_damaged_vectors_are_refused(of_values: Any) -> None:
    with pytest.raises(ValueError, match=r"too large|do not fit"):
        Attributes.of({"of_values": of_values}, {"columns": [COLUMNS["category"]]}, 5)


def test_faiss_finds_added_items() -> None:
    pytest.importorskip("faiss")
    table, sessions = clusters(4_000)
    search = build(table[:3_000], sessions, IndexSettings("faiss", recall=0.99))
    wrong = search.with_items(3_000, table[:500])
    extended = wrong.with_items(3_000, table[3_000:])
    exact = ExactSearch(table)
    counts = [10] * len(sessions)
    masks = [None] * len(sessions)
    found = extended.search(sessions, counts, masks).best
    best = exact.search(sessions, counts, masks).best
    hits = sum(
        len(set(ours.columns) & set(theirs.columns))
        for ours, theirs in zip(found, best, strict=True)
    )
    assert hits / (10 * len(sessions)) > 0.95
    assert len(extended.table) == extended.index.ntotal == 4_000


values = st.one_of(st.none(), st.sampled_from(["red", "blue", "green", "red hat"]))


@given(st.lists(st.tuples(values, values, st.none() | st.floats(0, 9)), min_size=1))
def test_reading_is_the_same_item_by_item(rows: list[tuple[Any, Any, Any]]) -> None:
    names = ("brand", "title", "price")
    columns: dict[str, list[Any]] = {
        name: [row[column] for row in rows] for column, name in enumerate(names)
    }
    kinds = {"brand": "category", "title": "words", "price": "number"}
    learned = AttributeReader.learn(kinds, columns)
    reader = AttributeReader.from_json(json.loads(json.dumps(learned.as_json())))
    draw = np.random.default_rng(0)
    of_values = draw.standard_normal((reader.number, 3)).astype(np.float32)
    attributes = Attributes(reader, of_values, np.zeros((0, 3), np.float32))
    together, described = attributes.vectors(columns, len(rows))
    entries = learned.read(columns, len(rows))
    for row in range(len(rows)):
        one = {name: column[row : row + 1] for name, column in columns.items()}
        alone, is_described = attributes.vectors(one, 1)
        np.testing.assert_allclose(together[row], alone[0], atol=1e-6)
        assert described[row] == is_described[0]
        # By hand: the sum of the values' vectors times their weights.
        expected = np.zeros(3)
        for entry in np.flatnonzero(entries.rows == row):
            value = entries.values[entry]
            expected += entries.weights[entry] * of_values[value].astype(np.float64)
        np.testing.assert_allclose(together[row], expected, atol=1e-5)


def test_a_new_item_has_its_times(known: Recommender, tmp_path: Path) -> None:
    noon = 1_795_176_000  # 2026-11-20
    rows = ROWS.with_columns(
        listed=pl.Series(["2026-11-19", None, None, None]),
        until=pl.Series([noon + 86_400, noon, None, None]),
    )
    names = {"created_column": "listed", "expires_column": "until"}
    rec = known.with_items(rows, SilentProgress(), **names)

    def asked(now: int, **rules: Any) -> set[str]:
        answer = rec.recommend(["i1"], now=now, **rules)
        return {item.item for item in answer if item.explored or not rules}

    every = set(rec.vocabulary.ids)
    assert asked(noon - 1) == every
    assert asked(noon) == every - {"m1"}
    assert asked(noon + 86_400) == every - {"m0", "m1"}
    assert rec.recommend(["m1"], now=noon).unknown == ()
    # After a mat comes a stove. Before it is created, m0 is not new; nobody has clicked on m1.
    assert asked(noon, k=3, explore=0.5) == {"m0"}
    assert asked(noon - 3 * 86_400, k=3, explore=0.5) == {"m1"}
    rows.write_csv(tmp_path / "items.csv")
    options = ["--items", tmp_path / "items.csv", "--expires-column", "until"]
    shown = command(
        "recommend", known.run.path, *options, "--now", noon, "--json", "-k", 20
    )
    popular = [item["item"] for item in json.loads(shown.out)["items"]]
    assert set(popular) == every - {"m1"}
    # The latest sessions of the log do not lift what has no clicks.
    assert set(popular[12:]) == {"n0", "n1", "n2", "n3", "m0"}
