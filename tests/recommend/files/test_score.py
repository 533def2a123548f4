"""`posrec score`: every input and output format, whole files only, chunks, Ray, and errors that
name the line."""

import gzip
import json
import os
import shlex
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from posrec.errors import InputError
from posrec.io.executor import Cluster, ThisProcess
from posrec.recommend.files import formats
from posrec.recommend.files.score import score_file
from posrec.recommend.recommender import Recommender
from tests.fixtures import with_attributes
from tests.helpers import (
    RecordingProgress,
    command,
    items_of,
    listed,
    packed,
    refused,
    write_lines,
)

LINES = [
    '{"session": ["a", "b"], "id": "first"}',
    "",
    '["x", "c"]',
    '{"session": ["f"], "id": 7}',
]
# a b: 2 4 11 0.5 4 without the denied; c alone, twice: 0 2 0 6 0.5; f is not known, so b, d.
DENY = ["e"]
ANSWERS: list[Any] = [
    {"id": "first", "items": ["c", "b"], "scores": [11.0, 4.0], "unknown": []},
    {"id": 3, "items": ["d", "b"], "scores": [6.0, 2.0], "unknown": ["x"]},
    {"id": 7, "items": ["b", "d"], "scores": [9.0, 7.0], "unknown": ["f"]},
]
for answer in ANSWERS:
    answer["popular"] = answer["id"] == 7


def lines_of(path: Path) -> list[Any]:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return [json.loads(line) for line in content.splitlines()]


def score(shop: Recommender, source: Path, out: Path, **options: Any) -> dict[str, int]:
    return score_chunks(lambda: shop, source, out, 2, deny=DENY, **options)


def score_chunks(
    open_run: Any, source: Path, out: Path, k: int = 4, **options: Any
) -> dict[str, int]:
    options = {"executor": ThisProcess(), "progress": RecordingProgress(), **options}
    return score_file(open_run, source, out, k, **options)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".ndjson.zst"])
@pytest.mark.parametrize("out", ["answers.jsonl", "answers.ndjson.gz"])
def test_lines_to_lines(
    shop: Recommender, tmp_path: Path, ending: str, out: str
) -> None:
    plain = "".join(line + "\n" for line in LINES).encode()
    compression = {".gz": "gzip", ".zst": "zstd"}.get(Path(ending).suffix)
    (tmp_path / f"in{ending}").write_bytes(packed(plain, compression))
    counts = score(shop, tmp_path / f"in{ending}", tmp_path / out)
    assert lines_of(tmp_path / out) == ANSWERS
    assert counts == {"sessions": 3, "unknown": 2, "popular": 1}


def test_lines_to_parquet(shop: Recommender, tmp_path: Path) -> None:
    score(shop, write_lines(tmp_path / "in.jsonl", LINES), tmp_path / "out.parquet")
    frame = pl.read_parquet(tmp_path / "out.parquet")
    expected = [{**answer, "id": str(answer["id"])} for answer in ANSWERS]
    assert frame.to_dicts() == expected
    assert frame.schema["scores"] == pl.List(pl.Float32)


@pytest.mark.parametrize("ids", [["first", "2", "3"], [10, 20, 30], None])
def test_parquet_to_both(shop: Recommender, tmp_path: Path, ids: Any) -> None:
    columns: Any = {"other": [0, 0, 0], "session": [["a", "b"], ["x", "c"], ["f"]]}
    if ids:
        columns["id"] = ids
    pl.DataFrame(columns).write_parquet(tmp_path / "in.parquet")
    for out in ("out.parquet", "out.jsonl"):
        score(shop, tmp_path / "in.parquet", tmp_path / out)
    pairs = zip(ANSWERS, ids or [1, 2, 3], strict=True)
    expected = [{**answer, "id": id} for answer, id in pairs]
    assert pl.read_parquet(tmp_path / "out.parquet").to_dicts() == expected
    assert lines_of(tmp_path / "out.jsonl") == expected


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"session": ["a"]', "not JSON"),
        ('{"clicks": ["a"]}', "neither"),
        ('"a"', "neither"),
        ('{"session": "ab"}', "a list of item ids, not 'ab'"),
        ('{"session": ["a"], "exclude": ["b"]}', "no field 'exclude'"),
        ('["a", 1.5]', "whole number, not 1.5"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_left(
    shop: Recommender, tmp_path: Path, line: str, fault: str
) -> None:
    source = write_lines(tmp_path / "in.jsonl", ['["a"]', '["b"]', line, '["c"]'])
    with pytest.raises(InputError, match=f"line 3: .*{fault}"):
        score(shop, source, tmp_path / "out.jsonl")
    assert listed(tmp_path) == ["in.jsonl"]


def test_unusable_files_are_input_errors(shop: Recommender, tmp_path: Path) -> None:
    good = write_lines(tmp_path / "in.jsonl", LINES)
    blank = write_lines(tmp_path / "blank.jsonl", [""])
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'["a"]\n' * 5000)[:-20])
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'["a"]\n["\xff"]\n')
    other = tmp_path / "other.parquet"
    missing = tmp_path / "missing.parquet"
    pl.DataFrame({"session": ["a"]}).write_parquet(other)
    pl.DataFrame({"session": [["a"], [None]]}).write_parquet(missing)
    before = listed(tmp_path)
    for source, out, message in (
        (tmp_path / "none.jsonl", "out.jsonl", "does not exist"),
        (blank, "out.jsonl", "holds no sessions"),
        (cut, "out.jsonl", "cut short or damaged"),
        (latin, "out.jsonl", "line 2: .*not JSON"),
        (other, "out.jsonl", r"must have a column 'session' .* \(String\)"),
        (missing, "out.parquet", "missing.parquet, row 2: .* not None"),
        (good, "out.csv", "the file name must end in"),
        (good, "out.jsonl.zst", "zstd can be read but not written"),
        (good, "in.jsonl", "exists already"),
    ):
        with pytest.raises(InputError, match=message):
            score(shop, source, tmp_path / out)
    assert listed(tmp_path) == before
    assert good.read_text().splitlines() == LINES


def test_an_output_is_overwritten_only_if_asked_and_only_on_success(
    shop: Recommender, tmp_path: Path
) -> None:
    good = write_lines(tmp_path / "in.jsonl", LINES)
    bad = write_lines(tmp_path / "bad.jsonl", ['["a"]', "{"])
    (tmp_path / "out.jsonl").write_text("before")
    with pytest.raises(InputError):
        score(shop, bad, tmp_path / "out.jsonl", overwrite=True)
    assert (tmp_path / "out.jsonl").read_text() == "before"
    score(shop, good, tmp_path / "out.jsonl", overwrite=True)
    assert lines_of(tmp_path / "out.jsonl") == ANSWERS
    assert len(listed(tmp_path)) == 3


# In many chunks, here and on a real Ray of two processes.

SESSIONS = [[f"i{1 + n % 9}", f"i{1 + n * 7 % 29}"][: 1 + n % 2] for n in range(100)]
SESSIONS[50] = ["x"]


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "CHUNK_ROWS", 16)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", list(map(json.dumps, SESSIONS)))


def rows_of(path: Path) -> list[Any]:
    if path.suffix == ".parquet":
        return pl.read_parquet(path).to_dicts()
    return lines_of(path)


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
@pytest.mark.parametrize("kind", ["in.jsonl", "in.parquet"])
def test_chunks_are_answered_as_all_sessions_together(
    trained: Path, tmp_path: Path, source: Path, out: str, kind: str
) -> None:
    frame = pl.DataFrame({"session": SESSIONS})
    frame.write_parquet(tmp_path / "in.parquet", row_group_size=40)
    progress = RecordingProgress()
    open_run = partial(Recommender.load, trained)
    counts = score_chunks(open_run, tmp_path / kind, tmp_path / out, progress=progress)
    total = source.stat().st_size if kind == "in.jsonl" else len(SESSIONS)
    moves = [move[1:] for move in progress.moves]
    assert len(moves) >= 7
    assert moves == sorted(moves)
    assert moves[-1] == (total, total)
    rows = rows_of(tmp_path / out)
    answers = Recommender.load(trained).recommend(SESSIONS, 4)
    assert [row["items"] for row in rows] == list(map(items_of, answers))
    assert [int(row["id"]) for row in rows] == list(range(1, 101))
    assert counts == {"sessions": 100, "unknown": 1, "popular": 1}
    assert listed(tmp_path) == ["in.jsonl", "in.parquet", out]


def killed_once(marker: Path) -> Recommender:
    """Opens the run of the folder; the first process that does is killed."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Recommender.load(marker.parent / "run")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.usefixtures("_small_chunks")
def test_ray_gives_the_same_answers_when_a_process_is_killed(
    trained: Path, tmp_path: Path, source: Path, cluster: Cluster
) -> None:
    (tmp_path / "run").symlink_to(trained)
    for out in ("out.jsonl", "out.parquet"):
        load = partial(Recommender.load, trained)
        here = score_chunks(load, source, tmp_path / "here" / out)
        open_run = partial(killed_once, tmp_path / f"killed-{out}")
        counts = score_chunks(open_run, source, tmp_path / out, executor=cluster)
        assert (tmp_path / f"killed-{out}").exists()
        expected = [  # sums may be taken in another order
            {**row, "scores": pytest.approx(row["scores"], rel=1e-5)}
            for row in rows_of(tmp_path / "here" / out)
        ]
        assert rows_of(tmp_path / out) == expected
        assert counts == here
    assert not [name for name in listed(tmp_path) if "unfinished" in name]


# Through the command.


def test_the_command_refuses_options_of_another_engine(
    trained: Path, tmp_path: Path, source: Path
) -> None:
    asked = ("score", trained, source, tmp_path / "other.jsonl")
    assert "choose local or ray" in refused(*asked, "--engine", "spark")
    assert "--engine ray" in refused(*asked, "--address", "auto")
    assert "--engine ray" in refused(*asked, "--workers", 2)


def test_the_command_scores_a_file(trained: Path, tmp_path: Path) -> None:
    lines = ['["i1", "i2"]', '{"session": ["x"], "id": 5}']
    source = write_lines(tmp_path / "in.jsonl", lines)
    asked = ("score", trained, source, tmp_path / "out.jsonl", "-k", 4)
    done = command(*asked)
    assert done.code == 0, done.err
    for words in ("2 sessions in", "Skipped 1 click", "1 session had no known item"):
        assert words in done.out
    first, second = lines_of(tmp_path / "out.jsonl")
    answer = Recommender.load(trained).recommend(["i1", "i2"], k=4)
    assert first["items"] == items_of(answer)
    assert first["scores"] == pytest.approx([item.score for item in answer], rel=1e-6)
    assert (second["id"], second["popular"], len(second["items"])) == (5, True, 4)
    assert "--overwrite" in refused(*asked)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """The trained run with columns: i5 has the brand b2, the price 5, and is not for sale. i25 to
    i29 are new."""
    rec = Recommender.load(trained)
    numbers = [int(item[1:]) for item in rec.vocabulary.ids]
    rec.vocabulary.columns.update(
        brand=[f"b{n % 3}" for n in numbers],
        price=[str(n) for n in numbers],
        sale=[n % 2 == 0 for n in numbers],
    )
    popularity = rec.run.popularity * (np.array(numbers) < 25)
    rec.run = with_attributes(replace(rec.run, popularity=popularity), "brand")
    rec.save(tmp_path / "run", export=False)
    return tmp_path / "run"


def test_the_options_of_the_command_are_those_of_the_recommender(
    run: Path, tmp_path: Path
) -> None:
    options = shlex.split(
        "--filter brand=b0,b1 --filter 'price<=25' --filter 'price>=2' --pin i7 "
        "--boost brand=b1:3.5 --diversify 0.5 --fields brand,price -k 6"
    )
    rules: dict[str, Any] = {
        "filter": {"brand": ["b0", "b1"], "price": {"min": 2, "max": 25}},
        "pin": ["i7"],
        "boost": {"brand": {"b1": 3.5}},
        "diversify": 0.5,
        "fields": ["brand", "price"],
    }
    expected = Recommender.load(run).recommend(["i1", "i2"], 6, **rules)
    shown = command("recommend", run, "i1", "i2", *options, "--json")
    answer = json.loads(json.dumps(expected.as_json()))
    for item in answer["items"]:
        # A search adds up the products in another order.
        item["score"] = pytest.approx(item["score"], abs=1e-4)
    assert json.loads(shown.out) == answer
    source = write_lines(tmp_path / "in.jsonl", ['["i1", "i2"]'])
    for out in ("out.jsonl", "out.parquet"):
        done = command("score", run, source, tmp_path / out, *options)
        assert done.code == 0, done.err
    (line,) = rows_of(tmp_path / "out.jsonl")
    assert line["items"] == items_of(expected)
    assert line["fields"] == [item.fields for item in expected]
    (row,) = rows_of(tmp_path / "out.parquet")
    assert (row["items"], json.loads(row["fields"])) == (line["items"], line["fields"])
    table = command("recommend", run, *options[:2], "--fields", "brand", "-k", 2)
    assert "The session is empty" in table.out
    assert "brand" in table.out
    by_json = command("recommend", run, "i1", "--filter", '{"price": {"max": -1}}')
    assert "No item is left to recommend." in by_json.out


def test_what_is_left_out_and_what_is_new(run: Path, tmp_path: Path) -> None:
    options = shlex.split(
        "--exclude current --filter 'price>1' --filter price!=7,9 --filter 'price<29' -k 5 "
        "--filter sale=True --filter brand!=b1 --diversify brand:3 --explore 0.4 "
        "--now 2026-11-20"  # new items take turns
    )
    asked = ("recommend", run, "i5", "i6", *options)
    shown = json.loads(command(*asked, "--fields", "sale", "--json").out)["items"]
    items = [item["item"] for item in shown]
    allowed = [f"i{n}" for n in range(2, 29, 2) if n % 3 != 1 and n != 6]
    assert len(items) == 5
    assert set(items) <= set(allowed)
    new = [item["item"] for item in shown if item.get("explored")]
    assert new == ["i26"]  # i28 is of brand b1
    assert all(item["fields"] == {"sale": True} for item in shown)
    assert " new" in command(*asked).out
    source = write_lines(tmp_path / "in.jsonl", ['["i5", "i6"]'])
    for out in ("out.jsonl", "out.parquet"):
        assert command("score", run, source, tmp_path / out, *options).code == 0
        (row,) = rows_of(tmp_path / out)
        assert (row["items"], row["explored"]) == (items, new)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--device", "tpu", "choose auto, cpu or cuda"),
        ("--diversify", "brand:0", "diversify"),
        ("--filter", "brand", "must be COLUMN=VALUE,VALUE"),
        ("--filter", "price<=cheap", "'cheap' is not a number"),
        ("--filter", "price=3 --filter price<5", "'price' has another filter too"),
        ("--filter", '{"price":', "not JSON"),
        ("--boost", "brand:2", "must be COLUMN=VALUE:FACTOR"),
    ],
)
def test_wrong_options_have_a_plain_message(
    trained: Path, option: str, value: str, message: str
) -> None:
    assert message in refused("recommend", trained, "i1", option, *value.split(" "))
