"""Items that have expired are not recommended, by hand on the shop of five items; the most clicked
items of late."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import posrec
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.progress import SilentProgress
from posrec.recommend import plan
from posrec.recommend.catalogue import EVERY_ITEM
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run
from posrec.training.settings import Settings
from tests.fixtures import run_of
from tests.helpers import command, fitted, items_of, refused, write_lines, write_log
from tests.recommend.test_recommender import scored

COLUMNS: dict[str, list[Any]] = {
    "expires": ["2026-11-21", None, "2026-11-20T12:00:00", None, "2026-11-20", None],
    "category": ["clothes", "clothes", "shoes", "kitchen", "kitchen", "kitchen"],
}
NOON = "2026-11-20T12:00:00"  # c has just expired, e before, and a will

# Scores of the session a, b: 2 4 11 0.5 4. Popular: b 9, d 7, e 5, a 3, c 1.
AB = ["a", "b"]


@pytest.fixture
def shop(shop_run: Run) -> Recommender:
    vocabulary = Vocabulary(list("abcdef"), COLUMNS)
    return Recommender(replace(shop_run, vocabulary=vocabulary), "cpu")


@pytest.mark.parametrize(
    ("now", "left"),
    [
        ("2026-11-19T23:59:59", "abcde"),
        ("2026-11-20", "abcd"),
        ("2026-11-20T11:59:59.999", "abcd"),
        (NOON, "abd"),
        ("2026-11-20T13:00:00+01:00", "abd"),
        (1_795_176_000, "abd"),  # noon in seconds, and in milliseconds
        (1_795_176_000_000.0, "abd"),
        ("1795175999", "abcd"),
        (datetime(2026, 11, 20, 12), "abd"),
        (datetime(2026, 11, 20, 12, tzinfo=UTC), "abd"),
        (date(2026, 11, 21), "bd"),
        ("2030-01-01", "bd"),
    ],
)
def test_an_item_is_recommended_until_it_expires(
    shop: Recommender, now: Any, left: str
) -> None:
    assert sorted(items_of(shop.recommend(AB, now=now))) == list(left)
    assert sorted(items_of(shop.recommend([], now=now))) == list(left)


def test_no_rule_brings_an_expired_item_back_and_its_clicks_are_read(
    shop: Recommender,
) -> None:
    answer = shop.recommend(AB, now=NOON)
    assert scored(answer) == [("b", 4.0), ("a", 2.0), ("d", 0.5)]
    rules: list[dict[str, Any]] = [
        {"pin": ["c", "e"]},
        {"boost": {"category": {"shoes": 1000}}},
        {"allow": list("abcde")},
        {"deny": ["x"], "diversify": {"column": "category", "most": 9}},
        {"filter": {"category": ["clothes", "shoes", "kitchen"]}},
    ]
    for more in rules:
        assert scored(shop.recommend(AB, now=NOON, **more)) == scored(answer)
    assert scored(shop.recommend([], now=NOON)) == [("b", 9.0), ("d", 7.0), ("a", 3.0)]
    assert scored(shop.recommend(AB, now=NOON, filter={"category": "shoes"})) == []
    # c was clicked: its scores 0 1 0 3 0.25 count twice, and b's once.
    clicked = shop.recommend(["b", "c"], now=NOON)
    assert scored(clicked) == [("d", 6.0), ("b", 2.0), ("a", 1.0)]
    assert clicked.unknown == ()
    shop.catalogue = shop.catalogue.with_rules(None, deny=["b"])
    assert items_of(shop.recommend(AB, now=NOON)) == ["a", "d"]


def test_what_expires_by_the_clock_is_found_once_for_all_requests(
    shop: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(second: float) -> Any:
        monkeypatch.setattr(plan, "clock", lambda: 1000 * second)
        return shop.plan().catalogue

    noon = 1_795_176_000
    assert at(noon - 86_400).rules is EVERY_ITEM  # nothing has expired
    before = at(noon - 1)
    assert before is at(noon - 1) is not shop.catalogue
    assert shop.plan().candidates is before.rules
    after = at(noon)
    assert after is at(noon + 3600) is not before
    shop.recommend(AB, now=date(2026, 11, 21))  # a replay leaves it as it is
    assert at(noon + 1) is after
    assert items_of(shop.recommend(AB)) == ["b", "a", "d"]


def test_the_clock_is_that_of_the_process(shop_run: Run) -> None:
    ends = ["2002-01-01", "9999-12-31", None, "2001-01-01", "1970-01-01", None]
    vocabulary = Vocabulary(list("abcdef"), {"expires": ends})
    rec = Recommender(replace(shop_run, vocabulary=vocabulary), "cpu")
    assert sorted(items_of(rec.recommend(AB))) == ["b", "c"]
    rec = Recommender(shop_run, "cpu")
    assert rec.plan().catalogue is rec.catalogue
    assert len(rec.recommend(AB, now="2100-01-01")) == 5


def test_similar_items_that_have_expired_are_left_out() -> None:
    torch.manual_seed(5)
    model = PosRecPlus(6, PosRecPlusConfig(d=8)).eval()
    run = run_of(model, list("abcdef"), "posrec-plus")
    run = replace(run, vocabulary=Vocabulary(run.vocabulary.ids, COLUMNS))
    rec = Recommender(run, "cpu")
    every = items_of(rec.similar_items("c", now="2026-01-01"))
    assert sorted(every) == list("abdef")
    left = items_of(rec.similar_items("c", now=NOON))  # c itself has expired
    assert left == [item for item in every if item != "e"]


def test_a_time_that_can_not_be_read_is_refused(shop: Recommender) -> None:
    for now in ("soon", True, "31/12/26", ["2026-01-01"], -1):
        with pytest.raises(InputError, match=r"now holds .* not a date or time"):
            shop.recommend(AB, now=now)
    vocabulary = Vocabulary(list("abcdef"), {"expires": ["2026-01-01", *["soon"] * 5]})
    rec = Recommender(replace(shop.run, vocabulary=vocabulary), "cpu")
    with pytest.raises(InputError, match="column 'expires' holds 'soon', which is not"):
        rec.recommend(AB)


# Clicks of late: a half-life of three days.

DAY = 86_400


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sessions a, b; six days later c, a; the file lists c's last."""
    clicks = [("s0", "a", 0), ("s0", "b", 1), ("s1", "a", 2), ("s1", "b", 3)]
    clicks += [("s2", "a", 4), ("s2", "b", 5)]
    clicks += [("s3", "c", 6 * DAY), ("s3", "a", 6 * DAY + 1)]
    clicks = [(session, item, 1_700_000_000 + time) for session, item, time in clicks]
    return write_log(tmp_path_factory.mktemp("late") / "clicks.csv", clicks)


def run_with(log: Path, tmp_path: Path, **settings: Any) -> Path:
    options: dict[str, Any] = {"no_test": True, "min_support": 1}
    items = write_lines(tmp_path / "items.csv", ["id,until", "a,2001-11-20", "b,"])
    options |= {"items": items, "expires_column": "until"}
    quiet = SilentProgress()
    data = posrec.prepare(log, "csv", tmp_path / "data", progress=quiet, **options)
    return fitted(data, "pop", tmp_path / "run", settings)[0].path


def test_recent_clicks_rank_what_is_popular(log: Path, tmp_path: Path) -> None:
    run = run_with(log, tmp_path)
    rec = Recommender.load(run, "cpu")
    # Six days are two half-lives: a has 3 / 4 + 1 clicks, b 3 / 4, c 1.
    expected = [("a", 1.75), ("c", 1.0), ("b", 0.75)]
    before = "2000-01-01"
    popular = scored(rec.recommend([], now=before))
    assert [item for item, _ in popular] == ["a", "c", "b"]
    scores = [score for _, score in popular]
    # The sessions begin up to four seconds apart.
    assert scores == pytest.approx([score for _, score in expected], abs=1e-4)
    assert rec.popularity.tolist() == [4, 3, 1]
    # The model pop stays what it is.
    assert items_of(rec.recommend(["c"], now=before)) == ["a", "b", "c"]
    rec.save(tmp_path / "saved", export=False)
    again = Recommender.load(tmp_path / "saved", "cpu").recommend([], now=before)
    assert scored(again) == popular
    assert items_of(rec.recommend([])) == ["c", "b"]  # a has expired


def test_the_half_life_is_a_setting(log: Path, tmp_path: Path) -> None:
    rec = Recommender.load(run_with(log, tmp_path, half_life=6000), "cpu")
    assert items_of(rec.recommend([], now="2000-01-01")) == ["a", "b", "c"]
    with pytest.raises(InputError, match="half_life must be above 0"):
        Settings(half_life=0).check()


def test_without_times_all_clicks_are_alike(tmp_path: Path) -> None:
    lines = ["a b", "a b", "c a", "b a"]
    data = posrec.prepare(
        write_lines(tmp_path / "sessions.txt", lines),
        "sessions",
        tmp_path / "data",
        no_test=True,
        min_support=1,
        progress=SilentProgress(),
    )
    run = fitted(data, "pop", tmp_path / "run")[0].path
    answer = Recommender.load(run, "cpu").recommend([])
    assert scored(answer) == [("a", 4.0), ("b", 3.0), ("c", 1.0)]


def test_the_commands(log: Path, tmp_path: Path) -> None:
    run = run_with(log, tmp_path)
    source = write_lines(tmp_path / "in.jsonl", ['["c"]', "[]", '["a"]'])
    for now, left in (("2001-11-19", "abc"), ("2001-11-20", "bc")):
        shown = json.loads(command("recommend", run, "--now", now, "--json").out)
        assert sorted(item["item"] for item in shown["items"]) == list(left)
        out = tmp_path / f"{now}.jsonl"
        assert command("score", run, source, out, "--now", now).code == 0
        answers = [json.loads(line) for line in out.read_text().splitlines()]
        assert [sorted(answer["items"]) for answer in answers] == [list(left)] * 3
    assert "now holds 'soon', which is not a date" in refused(
        "recommend", run, "--now", "soon"
    )
    out = tmp_path / "by-the-clock.jsonl"
    assert command("score", run, source, out).code == 0
    assert '"a"' not in out.read_text()
