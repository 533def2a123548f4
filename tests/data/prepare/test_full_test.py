"""The test part with its clicks on items that training did not see, beside the usual one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posrec.data.dataset import PreparedDataset, with_items_of
from posrec.data.vocabulary import Vocabulary
from tests.data.prepare.test_prepare import write_yoochoose
from tests.data.reading import prepared
from tests.helpers import (
    Click,
    command,
    listed,
    raw,
    refused,
    small_shop,
    write_lines,
    write_log,
)

HOUR = 3_600_000
TODAY = 1_700_000_000_000 + 30 * HOUR
# `late` has two clicks of today, `rare` one on either day: training sees neither.
EARLIER: list[Click] = [("e", "i0", TODAY - HOUR), ("e", "rare", TODAY - HOUR + 1)]
FRESH: list[Click] = [
    ("x", "late", TODAY),
    ("x", "i1", TODAY + 1),
    ("x", "i2", TODAY + 2),
    ("y", "i3", TODAY + HOUR),
    ("y", "late", TODAY + HOUR + 1),
    ("y", "rare", TODAY + HOUR + 2),
    ("z", "i0", TODAY + 2 * HOUR),
    ("z", "i1", TODAY + 2 * HOUR + 1),
]
FULL = [["late", "i1", "i2"], ["i3", "late", "rare"], ["i0", "i1"]]
USUAL = [["i1", "i2"], ["i0", "i1"]]
OPTIONS: dict[str, Any] = {"test_days": 0.1, "min_support": 3}


def full_test(data: PreparedDataset) -> list[list[str]]:
    ids = Vocabulary([*data.vocabulary.ids, *data.new_items])
    return raw(data.full_test, ids)


@pytest.fixture
def data(tmp_path: Path) -> PreparedDataset:
    log = write_log(tmp_path / "clicks.csv", [*small_shop(), *EARLIER, *FRESH])
    return prepared(log, tmp_path / "shop", **OPTIONS)


def test_by_hand(data: PreparedDataset) -> None:
    assert raw(data.test, data.vocabulary) == USUAL
    assert full_test(data) == FULL
    assert data.new_items == ["late", "rare"]
    assert data.vocabulary.ids == ["i0", "i1", "i2", "i3"]
    counts = data.manifest["counts"]
    assert counts["clicks"] == 90 + 4
    assert counts["new_item_clicks"] == 3
    done = command("stats", data.path, "--json")
    figures = json.loads(done.out)
    names = ("full_test_clicks", "new_item_clicks", "new_items")
    assert [figures[name] for name in names] == [8, 3, 2]
    table = " ".join(command("stats", data.path).out.split())
    assert "new items 3 test clicks on items that training did not see, 37.5%" in table


def test_the_usual_arrays_are_those_of_a_log_without_such_clicks(
    data: PreparedDataset, tmp_path: Path
) -> None:
    known = [click for click in FRESH if click[1] not in ("late", "rare")]
    log = write_log(tmp_path / "known.csv", [*small_shop(), *known])
    without = prepared(log, tmp_path / "known", **OPTIONS)
    assert without.full_test is without.test
    assert not [
        name for name in listed(without.path) if "full" in name or "new" in name
    ]
    for name in ("items", "offsets", "times"):
        for split in ("train", "test"):
            ours = np.load(data.path / f"{split}_{name}.npy")
            assert (
                ours.tolist() == np.load(without.path / f"{split}_{name}.npy").tolist()
            )
    assert data.fingerprint != without.fingerprint


def test_an_item_of_the_items_file_has_its_number(tmp_path: Path) -> None:
    """`late` is listed, so a model with attributes knows it; it is new all the same."""
    log = write_log(tmp_path / "clicks.csv", [*small_shop(), *FRESH])
    items = write_lines(tmp_path / "items.csv", ["id,brand", "late,a", "i1,a", "i2,b"])
    data = prepared(log, tmp_path / "shop", **OPTIONS, items=items, all_items=True)
    assert data.vocabulary.ids == ["i0", "i1", "i2", "i3", "late"]
    assert (data.train_items, data.recommendable_items) == (4, 5)
    assert data.new_items == ["rare"]
    assert full_test(data) == FULL
    assert data.manifest["counts"]["new_item_clicks"] == 3


def test_targets_are_listed_there_too(tmp_path: Path) -> None:
    clicks = [*small_shop(), *FRESH]
    lines = [
        f"{session},{item},{time},{'buy' if item in ('i2', 'rare') else 'view'}"
        for session, item, time in clicks
    ]
    log = write_lines(tmp_path / "clicks.csv", ["session,item,time,event", *lines])
    data = prepared(log, tmp_path / "shop", **OPTIONS, target_events="buy")
    assert data.test.targets is not None
    assert data.test.targets.tolist() == [1]  # i2 of session x
    assert data.full_test.targets is not None
    assert data.full_test.targets.tolist() == [2, 5]  # i2 of x, rare of y


def test_an_older_run_may_know_a_new_item(data: PreparedDataset) -> None:
    """Its items are numbered after those of training (`posrec train --keep-items`)."""
    larger = with_items_of(data, Vocabulary(["i3", "late", "gone"]), 3)
    assert larger.vocabulary.ids == ["i0", "i1", "i2", "i3", "late", "gone"]
    assert larger.new_items == ["rare"]
    assert full_test(larger) == FULL
    assert raw(larger.test, larger.vocabulary) == USUAL
    assert larger.train_clicks.tolist()[1:] == [
        *data.train_clicks.tolist()[1:5],
        0,
        0,
        0,
    ]


def test_the_fields_recipes_are_as_they_were(tmp_path: Path) -> None:
    """Fingerprints of datasets that were prepared before a full test part was kept."""
    moments = range(TODAY + 20 * HOUR, TODAY + 28 * HOUR, HOUR)
    rare = [
        (f"r{start}", item, start + step)
        for start in moments
        for step, item in enumerate(("i0", "x", "i1"))
    ]
    new = [
        (f"n{number}", item, TODAY + 28 * HOUR + step + number)
        for number in range(2)
        for step, item in enumerate(("i0", "new", "i1", "i2"))
    ]
    log = write_yoochoose(tmp_path / "clicks.dat", [*small_shop(60), *rare, *new])
    options: dict[str, Any] = {"format": "yoochoose"}
    whole = prepared(log, tmp_path / "whole", **options)
    assert whole.fingerprint == "3b46ca27e88be86af8e1b4dd8795cda9"
    assert whole.full_test is whole.test
    quarter = prepared(log, tmp_path / "quarter", **options, fraction="1/4")
    assert quarter.fingerprint == "0718908d9bd16d8b15b85031e80af444"
    train = write_lines(tmp_path / "train.txt", ["1 2", "7", "3 4 5"] * 3)
    test = write_lines(tmp_path / "test.txt", ["2 9 1", "8", "9 4"])
    given = prepared(train, tmp_path / "given", format="sessions", test=test)
    assert given.fingerprint == "bf60c2cc9e5c01513f7e899fdaee2ede"
    assert given.full_test is given.test
    assert given.manifest["counts"]["new_item_clicks"] == 2


def test_an_existing_split_of_users(tmp_path: Path) -> None:
    """Both parts are split after inactivity, by default of half an hour."""
    minutes = {"u1": (0, 10, 50, 60), "u2": (5, 20, 35)}
    for name, start in (("train", 0), ("test", TODAY)):
        lines = [
            f"{user},{item},{start + 60_000 * minute}"
            for user, clicks in minutes.items()
            for item, minute in zip("abcd", clicks, strict=False)
        ]
        write_lines(tmp_path / f"{name}.csv", ["user,item,time", *lines])
    source = tmp_path / "train.csv"
    options: dict[str, Any] = {"test": tmp_path / "test.csv", "time_unit": "ms"}
    by_user = prepared(source, tmp_path / "out", **options, user_column="user")
    parts = [["a", "b"], ["a", "b", "c"], ["c", "d"]]
    assert raw(by_user.train, by_user.vocabulary) == parts
    assert raw(by_user.test, by_user.vocabulary) == parts
    assert by_user.manifest["options"]["gap"] == 30 * 60_000
    hour = prepared(source, tmp_path / "out", **options, user_column="user", gap="1h")
    whole = [["a", "b", "c", "d"], ["a", "b", "c"]]
    assert raw(hour.test, hour.vocabulary) == whole
    rejected = ("--test", tmp_path / "test.csv", "--min-support", 2)
    message = refused("prepare", source, *rejected, "--out", tmp_path / "other")
    assert "only --min-length and --gap can be set" in message
