"""What `posrec prepare` says about the times of a log and about its test part."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import posrec
from posrec.data.prepare.steps import DAY
from posrec.errors import InputError
from tests.data import reading
from tests.helpers import (
    RecordingProgress,
    in_parts,
    small_shop,
    write_lines,
    write_log,
)


def prepared(
    log: Path, folder: Path, **options: Any
) -> tuple[posrec.PreparedDataset, list[str]]:
    progress = RecordingProgress()
    return reading.prepared(log, folder / "out", progress, **options), progress.messages


def test_since_and_until_drop_the_clicks_that_are_warned_of(tmp_path: Path) -> None:
    shop = small_shop(400)  # from 2023-11-14 22:13 on
    wrong = [("odd", f"i{step}", 1000 * step) for step in range(3)]
    log = write_log(tmp_path / "a.csv", [*shop, *wrong])
    _, messages = prepared(log, tmp_path, time_unit="ms")
    (warning,) = [text for text in messages if text.startswith("warning")]
    assert warning.endswith("drop these clicks with --since and --until")
    options: dict[str, Any] = {"time_unit": "ms"}
    data, messages = prepared(log, tmp_path, since="2023-11-14", **options)
    assert data.manifest["steps"][0]["clicks"] == 1200
    assert data.manifest["warnings"] == []
    left_out = "of 1,203 clicks are not between --since and --until and were left out"
    assert f"3 {left_out}" in messages
    until = datetime(2023, 11, 20, tzinfo=UTC)
    kept = [time for *_, time in shop if time < 1000 * until.timestamp()]
    with in_parts():
        data, messages = prepared(
            log, tmp_path, since=until.date() - timedelta(9), until=until, **options
        )
    assert data.manifest["steps"][0]["clicks"] == len(kept) > 0
    assert f"{1203 - len(kept):,} {left_out}" in messages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"since": "2023-11-15", "until": "2023-11-15"},
            "--since must be earlier than",
        ),
        ({"since": "gestern"}, "are dates or times, such as .* not 'gestern'"),
        (
            {"until": "2001-01-01"},
            "90 of 90 clicks are not between --since and --until; give",
        ),
    ],
)
def test_times_that_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    with pytest.raises(InputError, match=message):
        prepared(log, tmp_path, **options)


LOOKALIKES = [
    "sku-1",
    "sku-1 ",
    "\tsku-2",
    "sku-2",
    "Caf\u00e9",
    "Cafe\u0301",
    "x",
    "x1",
]


def write_lookalikes(path: Path) -> Path:
    clicks = [
        (f"s{n // 4}{' ' * (n % 2)}", LOOKALIKES[n % 8], 1_700_000_000_000 + n)
        for n in range(80)
    ]
    return write_log(path, clicks)


def test_ids_that_look_alike_are_warned_of_and_joined(tmp_path: Path) -> None:
    log = write_lookalikes(tmp_path / "a.csv")
    data, messages = prepared(log, tmp_path)
    assert len(data.vocabulary) == 8
    (warning,) = data.manifest["warnings"]
    assert warning in messages
    assert warning == (
        "warning: the ids of 3 items differ only in the spaces around them or in their Unicode "
        "form, e.g. 'sku-1' and 'sku-1 ', '\\tsku-2' and 'sku-2', 'Caf\\xe9' and 'Cafe\\u0301'. "
        "--normalize-ids joins them"
    )
    lines = ["id,title", "sku-1 ,Tent", "Cafe\u0301,Mug"]
    items = write_lines(tmp_path / "items.csv", lines)
    options: dict[str, Any] = {"normalize_ids": True, "items": items}
    joined, messages = prepared(log, tmp_path, **options)
    assert joined.vocabulary.ids == ["sku-1", "sku-2", "Caf\u00e9", "x", "x1"]
    assert joined.vocabulary.columns["title"][:3] == ["Tent", None, "Mug"]
    assert joined.manifest["warnings"] == []
    assert joined.manifest["steps"][0]["sessions"] == 20  # not 40


def test_a_blank_id_is_missing_if_ids_are_joined(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", [*small_shop(), ("s1", " ", 5)])
    with pytest.raises(InputError, match=r"line 92: the item .* is missing"):
        prepared(log, tmp_path, normalize_ids=True)


def test_a_click_of_the_future_is_warned_of(tmp_path: Path) -> None:
    """One visitor with a wrong clock makes the last days of the log those of that visitor."""
    now = int(time.time() * 1000)
    shop = small_shop(600, start=now - 30 * DAY)
    log = write_log(tmp_path / "now.csv", shop)
    data, messages = prepared(log, tmp_path, test_days=10)
    assert not any("warning" in text for text in messages)
    wrong = [("odd", f"i{step}", now + 2 * DAY + step) for step in range(3)]
    log = write_log(tmp_path / "odd.csv", [*shop, *wrong])
    data, messages = prepared(log, tmp_path, test_days=1)
    assert data.test.sessions == 1
    day = time.strftime("%Y-%m-%d", time.gmtime((now + 2 * DAY) / 1000))
    (warning,) = data.manifest["warnings"]
    assert (
        f"3 of 1,803 clicks are dated more than a day from now, e.g. {day}" in warning
    )
    assert warning in messages
    assert "only 2 test samples" in messages[-1]


@pytest.mark.parametrize(
    ("moved", "days", "warning"),
    [
        (2, -20_000, "2 of 2,000 clicks are dated before 1990, e.g. 19"),
        (2, -400, "more than a year from all others, e.g. 2022-1"),
        (2, 400, "more than a year from all others, e.g. 2024-1"),
        (1, -400, None),  # less than one in a thousand
        (2, 300, None),
        (1, -20_000, "1 of 2,000 clicks is dated before 1990"),
        (2000, -20_000, "2,000 of 2,000 clicks are dated before 1990"),
    ],
)
def test_times_that_can_not_be_right(
    tmp_path: Path, moved: int, days: int, warning: str | None
) -> None:
    clicks = []
    for number in range(2000):
        time = 1_700_000_000_000 + 60_000 * number
        if number < moved:
            time += days * DAY
        clicks.append((f"s{number // 4}", f"i{number % 5}", time))
    log = write_log(tmp_path / "c.csv", clicks)
    data, messages = prepared(log, tmp_path, time_unit="ms")
    warnings = data.manifest["warnings"]
    assert len(warnings) == (warning is not None)
    for text in warnings:
        assert warning in text
        assert text in messages
    with in_parts():
        again, _ = prepared(log, tmp_path, time_unit="ms")
        assert again.manifest["warnings"] == warnings


@pytest.mark.parametrize("days", [1, 3])
def test_the_last_days_of_dates(tmp_path: Path, days: int) -> None:
    clicks: list[Any] = [
        (f"{day}-{visit}", f"i{(visit + step) % 4}", f"2026-03-{day:02}")
        for day in range(1, 11) for visit in range(20) for step in range(3)
    ]  # fmt: skip
    log = write_log(tmp_path / "dates.csv", clicks)
    data, _ = prepared(log, tmp_path, test_days=days)
    assert (data.train.sessions, data.test.sessions) == (20 * (10 - days), 20 * days)


def test_lines_of_items_have_no_days(tmp_path: Path) -> None:
    lines = ["1 2 3", "2 3 4", "3 4 1", "4 1 2"] * 20
    log = write_lines(tmp_path / "sessions.txt", lines)
    with pytest.raises(InputError, match="--test-days needs times"):
        prepared(log, tmp_path, test_days=1)
    data, _ = prepared(log, tmp_path)
    assert data.trained_until is None
    with_times = write_log(tmp_path / "c.csv", small_shop())
    data, _ = prepared(with_times, tmp_path)
    assert data.trained_until is not None
