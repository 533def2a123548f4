"""A run is judged as it will be served: with new listings, without what the session has."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import posrec
from posrec.fitting.evaluate_run import evaluate
from posrec.progress import SilentProgress
from posrec.runs.run import load_run
from tests.data.reading import prepared
from tests.helpers import CommandResult, command, fitted, write_lines, write_log

KINDS = ("tents", "mats", "stoves", "boots")
QUICK: dict[str, Any] = {
    "d": 16,
    "epochs": 8,
    "batch_size": 16,
    "learning_rate": 0.02,
    "protocol": "paper",
    "attributes": "auto",
}
HOUR = 3_600_000


class Market(NamedTuple):
    data: Path
    items: Path
    run: Path


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Market:
    """Twenty-four items of four kinds, of which one always follows the other. On the last day,
    sessions end on a listing of that day, n0 to n3."""
    folder = tmp_path_factory.mktemp("market")
    clicks = []
    for session in range(240):
        for step in range(4):
            item: object = (session + step) % 4 + 4 * ((session * 7 + step * step) % 6)
            if session >= 220 and step == 3:
                item = f"n{(session + step) % 4}"
            clicks.append((f"s{session}", f"{item}", HOUR * session + step))
    rows = [f"{item},{KINDS[item % 4]}" for item in range(24)]
    known = write_lines(folder / "known.csv", ["id,kind", *rows])
    rows += [f"n{kind},{name}" for kind, name in enumerate(KINDS)]
    items = write_lines(folder / "items.csv", ["id,kind", *rows])
    log = write_log(folder / "clicks.csv", clicks)
    options: dict[str, Any] = {"items": known, "time_unit": "ms"}
    data = prepared(log, folder / "data", test_days=19.5 / 24, **options)
    run, _ = fitted(data, "posrec-plus", folder / "run", QUICK)
    return Market(data.path, items, run.path)


def evaluated(market: Market, *options: object) -> CommandResult:
    options = ("evaluate", market.run, market.data, "--device", "cpu", *options)
    done = command(*options)
    assert done.code == 0, done.err
    return done


def test_new_listings_are_hits_with_the_items_file(market: Market) -> None:
    before = (market.run / "metrics.json").read_bytes()
    without = json.loads(evaluated(market, "--json").out)["by_novelty"]
    assert {name: without[name]["samples"] for name in without} == {
        "known": 40,
        "rare": 0,
        "new": 20,
        "all": 60,
    }
    assert without["new"]["recall@20"] == 0
    done = evaluated(market, "--items", market.items, "--json")
    assert "attributes=auto" not in done.err  # which these are
    figures = json.loads(done.out)
    new = figures["by_novelty"]["new"]
    # A listing ranks among the six other items of the kind that follows.
    assert new["recall@20"] == 1
    assert new["mrr@20"] > 1 / 7
    assert (market.run / "metrics.json").read_bytes() == before
    recommender = posrec.Recommender(load_run(market.run), "cpu")
    served = recommender.with_items(market.items, SilentProgress())
    outcome = evaluate(served, posrec.load(market.data), SilentProgress())
    assert outcome.by_novelty["new"] == pytest.approx(new)


def test_the_tables_and_the_sentence(market: Market) -> None:
    done = evaluated(market)
    lines = [line.split() for line in done.out.splitlines()]
    assert ["%", "known", "rare", "new", "all", "clicks"] in lines
    assert ["samples", "40", "0", "20", "60"] in lines
    assert "25.0% of all test clicks are on items that training did not see" in done.err
    for option in ("--set attributes=auto", "--items"):
        assert option in done.err


def test_a_comparison_has_them_too(market: Market, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    options = ("--models", "pop", "--runs", market.run, "--out", out, "--device", "cpu")
    done = command("compare", market.data, *options)
    assert done.code == 0, done.err
    assert ["samples", "40", "0", "20", "60"] in [
        x.split() for x in done.out.splitlines()
    ]
    assert "25.0% of all test clicks" in done.err
    stored = json.loads((out / "comparison.json").read_text())["by_novelty"]
    assert (
        stored["pop"]["all"]["recall@20"] == stored["pop"]["known"]["recall@20"] * 2 / 3
    )
    of_run = json.loads((market.run / "metrics.json").read_text())["by_novelty"]
    assert stored["run"] == of_run
    report = (out / "report.html").read_text()
    assert "25.0% of all test clicks" in report
    assert "<th>new (20)</th>" in report


def test_without_the_items_of_the_session(market: Market) -> None:
    before = (market.run / "metrics.json").read_bytes()
    done = evaluated(market, "--exclude", "seen", "--json")
    assert "without seen items" in json.loads(done.out)["ranking"]
    assert (market.run / "metrics.json").read_bytes() == before


def test_targets_that_their_session_has_already_are_warned_of(tmp_path: Path) -> None:
    """A purchase follows the view of the same item."""
    lines = ["session,item,time,event"]
    for session in range(60):
        for step, item in enumerate((session % 5, session % 3, session % 5)):
            event = "purchase" if step == 2 else "view"
            lines.append(f"s{session},i{item},{HOUR * session + step},{event}")
    log = write_lines(tmp_path / "clicks.csv", lines)
    options: dict[str, Any] = {"target_events": "purchase", "time_unit": "ms"}
    data = prepared(log, tmp_path / "data", **options)
    out = tmp_path / "run"
    done = command("train", data.path, "--model", "spop", "--out", out, "--no-export")
    assert done.code == 0, done.err
    assert "warning: 100.0% of the test targets" in done.err
    assert "--exclude seen" in done.err
