"""Scores of another system: ranked as models are, in chunks; those of other samples are refused."""

import json
import math
import re
import tempfile
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given, settings, strategies as st
from markupsafe import escape

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.metrics import rank_metrics
from posrec.experiments.other_system import (
    COLUMNS,
    compare_orders,
    rank_scores,
    sample_id,
    write_samples,
)
from posrec.io import read_json
from posrec.progress import SilentProgress
from posrec.testing import write_dataset
from tests.helpers import ROOT, RecordingProgress, command, listed, refused

# Samples: a > b; a b > c; b > d; c > new, an item that is not in training.
TRAIN = [list("abc"), list("bdef")]
TEST = [list("abc"), list("bd"), ["c", "new"]]
TARGETS = ["b", "c", "d", "new"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return write_dataset(tmp_path_factory.mktemp("other") / "data", TRAIN, TEST)


def rows_of(
    data: PreparedDataset, scores: list[tuple[int, str, float]]
) -> pl.DataFrame:
    rows = [(sample_id(data, number), item, score) for number, item, score in scores]
    return pl.DataFrame(rows, COLUMNS, orient="row")


def write_scores(path: Path, rows: pl.DataFrame) -> Path:
    if path.suffix == ".parquet":
        rows.write_parquet(path)
    else:
        rows.write_ndjson(path)
    return path


def test_ranks_by_hand(data: PreparedDataset, tmp_path: Path) -> None:
    scores = [
        # A tie counts against the target.
        (1, "b", 2.0),
        (1, "a", 2.0),
        (1, "c", 1.0),
        # Only the items of the dataset are ranked.
        (2, "unknown", 9.0),
        (2, "d", 1.0),
        (2, "c", 1.5),
        # The target is not listed.
        (3, "a", 3.0),
        (3, "b", -math.inf),
        # The target can't be recommended.
        (4, "new", 9.0),
    ]
    progress = RecordingProgress()
    rows = rows_of(data, scores).with_columns(other=1)  # a column that is not used
    path = write_scores(tmp_path / "scores.parquet", rows)
    evaluation = rank_scores(path, data, progress)
    metrics = evaluation.metrics
    assert evaluation.ranks.tolist() == [2, 1, 21, 21]
    assert metrics["recall@5"] == 0.5
    assert metrics["mrr@20"] == (0.5 + 1) / 4
    assert metrics["coverage@20"] == 4 / 6  # a, b, c, d of a to f
    clicks = [2, 1, 1, 1, 1, 1]  # b, which is listed first, has two
    assert metrics["popularity@20"] == pytest.approx(sum(clicks) / 6 / 2)
    assert evaluation.dataset == data.fingerprint
    assert "2 of 9 rows are of items" in progress.messages[0]
    assert "1 of 4 test samples have no scores" in progress.messages[1]
    # Among all items, the target that can't be recommended is the first.
    (warning,) = evaluation.warnings
    assert warning.startswith("1 test sample with a target that no training session")
    assert "1 of them among the first 20" in warning
    assert "25.00 more R@20" in warning


def test_a_target_outside_training_that_is_not_ranked(
    data: PreparedDataset, tmp_path: Path
) -> None:
    rows = rows_of(data, [(1, "new", 1.0), (4, "new", -math.inf), (4, "a", 1.0)])
    path = write_scores(tmp_path / "scores.parquet", rows)
    assert rank_scores(path, data, SilentProgress()).warnings == ()


def ranked_as(ranks: list[int]) -> Evaluation:
    tensor = torch.tensor(ranks)
    return Evaluation(rank_metrics(tensor), tensor, tensor)


def test_the_order_of_samples_matters_beyond_rounding() -> None:
    ranks = [1] * 600 + [21] * 400
    first = ranked_as(ranks)
    progress = RecordingProgress()
    # Past the first 20, ranks are not told apart.
    further = ranked_as([1] * 600 + [900] * 400)
    rounded = ranked_as([2] * 10 + ranks[10:])
    for again in (first, further, rounded):
        assert compare_orders(first, again, progress) == first
    counts = [
        message.split(" of 1,000 test samples")[0] for message in progress.messages
    ]
    assert counts == ["0", "0", "10"]
    # Few ranks, but all of them move out of the first 20; many ranks, within the first 20.
    moved = ranked_as([21] * 10 + ranks[10:])
    reordered = ranked_as([2] * 11 + ranks[11:])
    for again, count, recall in ((moved, 10, "59.00"), (reordered, 11, "60.00")):
        (warning,) = compare_orders(first, again, progress).warnings
        assert warning.startswith(f"{count} of 1,000 test samples have another rank")
        assert f"R@20 is {recall} instead of 60.00" in warning


def test_shuffled_samples_are_the_same_in_another_order(
    small: PreparedDataset, tmp_path: Path
) -> None:
    lines = []
    for name, options in (("a", ()), ("b", ("--shuffled",)), ("c", ("--shuffled",))):
        path = tmp_path / f"{name}.jsonl"
        done = command("compare", small.path, "--samples", path, *options)
        assert done.code == 0, done.err
        lines.append(path.read_text().splitlines())
    in_order, shuffled, again = lines
    assert shuffled == again
    assert shuffled != in_order
    assert sorted(shuffled) == in_order


def test_a_system_that_reads_its_batch_is_found(
    small: PreparedDataset, trained: Path, tmp_path: Path
) -> None:
    """It sees the next line, which in the file's order is often the longer session."""
    scored = {}
    for name, options in (("ordered", ()), ("shuffled", ("--shuffled",))):
        samples = tmp_path / f"{name}.jsonl"
        command("compare", small.path, "--samples", samples, *options)
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        rows = []
        for line, following in zip(lines, [*lines[1:], lines[0]], strict=True):
            last = line["session"][-1]
            peeked = following["session"][-1]
            rows.append((line["id"], last, 1.0))
            if peeked != last:
                rows.append((line["id"], peeked, 2.0))
        frame = pl.DataFrame(rows, COLUMNS, orient="row").sort("session")
        scored[name] = write_scores(tmp_path / f"{name}.parquet", frame)
    out = tmp_path / "out"
    scores = ("--scores", f"peeks={scored['ordered']}")
    again = ("--scores-again", f"peeks={scored['shuffled']}")
    done = command(
        "compare", small.path, "--runs", trained, *scores, *again, "--out", out
    )
    assert done.code == 0, done.err
    (warning,) = read_json(out / "comparison.json")["warnings"]
    assert re.match(r"peeks: [\d,]+ of [\d,]+ test samples have another rank", warning)
    assert warning in done.err
    report = (out / "report.html").read_text()
    assert escape(warning) in report
    assert f"--scores-again peeks={scored['shuffled']}" in report


ROW = st.tuples(st.integers(1, 4), st.sampled_from("abcdef"))


@settings(max_examples=30, deadline=None)
@given(
    scores=st.dictionaries(ROW, st.integers(-2, 2), min_size=1),
    at_once=st.sampled_from([1, 3, 1000]),
)
def test_ranks_in_chunks_of_any_size(
    data: PreparedDataset, scores: dict[tuple[int, str], int], at_once: int
) -> None:
    """As a plain loop over all items says, for scores with many ties and gaps."""
    expected = []
    for number, target in enumerate(TARGETS, start=1):
        by_item = {
            item: score for (sample, item), score in scores.items() if sample == number
        }
        own_score = by_item.pop(target, None)
        rank = 21
        if own_score is not None:
            rank = 1 + sum(score >= own_score for score in by_item.values())
        expected.append(rank)
    listed_scores = [(*row, float(score)) for row, score in scores.items()]
    rows = rows_of(data, listed_scores).sort("session")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("posrec.evaluation.evaluate.rows_at_once", lambda *_: at_once)
        patch.setattr("posrec.experiments.other_system.ROWS_AT_A_TIME", at_once)
        patch.setattr("posrec.data.source.blocks.BLOCK_BYTES", 50 * at_once)
        for name in ("scores.parquet", "scores.jsonl"):
            path = write_scores(Path(folder) / name, rows)
            evaluation = rank_scores(path, data, SilentProgress())
            assert evaluation.ranks.tolist() == expected


def test_posrec_score_as_the_other_system(
    trained: Path,
    small: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The way of docs/training.md: its row is that of the run."""
    monkeypatch.chdir(tmp_path)
    done = command("compare", small.path, "--samples", "samples.jsonl")
    assert done.code == 0, done.err
    assert f"Wrote {len(small.test):,} test samples" in done.out
    done = command("score", trained, "samples.jsonl", "answers.parquet", "-k", 30)
    assert done.code == 0, done.err
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    exec(compile(code, "docs/training.md", "exec"), {})
    out = tmp_path / "out"
    options = ("--runs", trained, "--scores", "other=scores.parquet", "--out", out)
    done = command("compare", small.path, *options)
    assert done.code == 0, done.err
    metrics = read_json(out / "comparison.json")["metrics"]
    assert metrics["other"] == pytest.approx(metrics["run"])
    assert "other" in (out / "report.html").read_text()
    assert listed(out) == ["comparison.json", "report.html"]


def test_the_samples_are_the_clicks_before_each_target(
    data: PreparedDataset, tmp_path: Path
) -> None:
    path = tmp_path / "samples.jsonl"
    write_samples(data, path)
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    sessions = [["a"], ["a", "b"], ["b"], ["c"]]
    assert [sample["session"] for sample in samples] == sessions
    ids = [f"{data.fingerprint[:12]}-{number}" for number in (1, 2, 3, 4)]
    assert [sample["id"] for sample in samples] == ids


GOOD = [(1, "b", 2.0), (2, "c", 1.0)]


SESSION = pl.col("session")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (SESSION.str.replace("^.{12}", "00112233aabb"), "row 1: .* not a test sample"),
        (SESSION.str.replace("2$", "5"), "row 2: .*-5' is not a test sample"),
        (SESSION.reverse(), "row 2: its session .*-1' follows a later one"),
        (pl.lit("high").alias("score"), "row 1: the score must be a number"),
        (pl.lit(math.nan).alias("score"), "row 1: the score must be a number"),
        (pl.lit(7).alias("item"), "lists no item of"),
        (pl.lit(["b"]).alias("score"), "after row 0: can't be read"),
    ],
)
def test_scores_that_can_not_be_used(
    data: PreparedDataset, tmp_path: Path, change: pl.Expr, message: str
) -> None:
    rows = rows_of(data, GOOD).with_columns(change)
    path = write_scores(tmp_path / "scores.parquet", rows)
    with pytest.raises(InputError, match=message):
        rank_scores(path, data, SilentProgress())


def test_an_item_twice_a_missing_column_and_a_broken_line(
    data: PreparedDataset, tmp_path: Path
) -> None:
    path = tmp_path / "scores.parquet"
    rows = rows_of(data, GOOD)
    write_scores(path, pl.concat([rows, rows.tail(1)]))
    with pytest.raises(InputError, match=r"lists the item 'c' twice for session .*-2"):
        rank_scores(path, data, SilentProgress())
    write_scores(path, rows.drop("score"))
    with pytest.raises(InputError, match="has no column 'score'"):
        rank_scores(path, data, SilentProgress())
    (tmp_path / "scores.jsonl").write_text('{"session": \n')
    with pytest.raises(InputError, match=r"scores\.jsonl, after row 0: can't be read"):
        rank_scores(tmp_path / "scores.jsonl", data, SilentProgress())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--scores scores.parquet", "write key=value"),
        ("--scores a=x.parquet --scores a=y.parquet", "same name"),
        ("--scores a=none.parquet --models pop", "none.parquet does not exist"),
        ("--scores a=x.csv --models pop", "x.csv: the file name must end in"),
        ("--scores-again a=x.parquet --models pop,spop", "add --scores a=FILE"),
        ("--shuffled --models pop,spop", "--shuffled needs --samples"),
        ("--samples samples.csv", "must end in .jsonl"),
        ("--samples there.jsonl", "there.jsonl: exists already"),
        ("--scores pop=x.parquet --models pop", "there is pop, pop"),
        ("", "at least two different names"),
    ],
)
def test_mistakes_on_the_command_line(
    data: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").write_text("mine\n")
    (tmp_path / "x.csv").write_text("session,item,score\n")
    assert message in refused("compare", data.path, *arguments.split())
    assert listed(tmp_path) == ["there.jsonl", "x.csv"]
