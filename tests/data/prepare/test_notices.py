"""What `posrec prepare` says about the times of a log and about its test part."""

import time
from pathlib import Path
from typing import Any

import pytest

import posrec
from posrec.data.prepare.steps import DAY
from posrec.errors import InputError
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
    data = posrec.prepare(log, out=folder / "out", progress=progress, **options)
    return data, progress.messages


def test_a_click_of_the_future_is_warned_of(tmp_path: Path) -> None:
    """One visitor with a wrong clock makes the last days of the log those of that visitor."""
    now = int(time.time() * 1000)
    shop = small_shop(600, start=now - 30 * DAY)
    log = write_log(tmp_path / "now.csv", shop)
    data, messages = prepared(log, tmp_path, test_days=10)
    assert not any("warning" in text for text in messages)
    wrong = [("odd", f"i{step}", now + 2 * DAY + step) for step in range(3)]
    log = write_log(tmp_path / "odd.csv", [*shop, *wrong])
    data, messages = prepared(log, tmp_path, test_days=1, overwrite=True)
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
        again, _ = prepared(log, tmp_path, time_unit="ms", overwrite=True)
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
    data, _ = prepared(with_times, tmp_path, overwrite=True)
    assert data.trained_until is not None
