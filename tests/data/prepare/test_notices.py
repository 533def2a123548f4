"""What `posrec prepare` says about the times of a log and about its test part."""

import time
from pathlib import Path

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
    log: Path, folder: Path, **options: object
) -> tuple[posrec.PreparedDataset, list[str]]:
    progress = RecordingProgress()
    data = posrec.prepare(log, out=folder / "out", progress=progress, **options)
    return data, progress.messages


def test_a_click_of_the_future_is_warned_of(tmp_path: Path) -> None:
    """One visitor with a wrong clock makes the last days of the log those of that visitor."""
    now = int(time.time() * 1000)
    shop = small_shop(600, start=now - 30 * DAY)
    data, said = prepared(write_log(tmp_path / "now.csv", shop), tmp_path, test_days=10)
    assert not any("warning" in text for text in said)
    wrong = [("odd", f"i{step}", now + 2 * DAY + step) for step in range(3)]
    log = write_log(tmp_path / "odd.csv", [*shop, *wrong])
    data, said = prepared(log, tmp_path, test_days=1, overwrite=True)
    assert data.test.sessions == 1
    day = time.strftime("%Y-%m-%d", time.gmtime(now / 1000 + 2 * DAY / 1000))
    (warning,) = data.manifest["warnings"]
    assert warning.startswith(
        f"warning: 3 of 1,803 clicks are dated more than a day from now, e.g. {day}. The latest"
    )
    assert warning in said
    assert said[-1].startswith("only 2 test samples")


@pytest.mark.parametrize(
    ("moved", "days", "says"),
    [
        (2, -20_000, "2 of 2,000 clicks are dated before 1990, e.g. 19"),
        (
            2,
            -400,
            "2 of 2,000 clicks are dated more than a year from all others, e.g. 2022-1",
        ),
        (
            2,
            400,
            "2 of 2,000 clicks are dated more than a year from all others, e.g. 2024-1",
        ),
        (1, -400, ""),  # less than one in a thousand
        (2, 300, ""),
        (1, -20_000, "1 of 2,000 clicks is dated before 1990"),
        (2000, -20_000, "2,000 of 2,000 clicks are dated before 1990"),
    ],
)
def test_times_that_can_not_be_right(
    tmp_path: Path, moved: int, days: int, says: str
) -> None:
    clicks = [
        (f"s{n // 4}", f"i{n % 5}", 1_700_000_000_000 + 60_000 * n) for n in range(2000)
    ]
    wrong = [
        (session, item, time + days * DAY) for session, item, time in clicks[:moved]
    ]
    data, said = prepared(
        write_log(tmp_path / "c.csv", [*wrong, *clicks[moved:]]),
        tmp_path,
        time_unit="ms",
    )
    warned = data.manifest["warnings"]
    assert (len(warned), warned[0][9:].startswith(says) if warned else True) == (
        bool(says),
        True,
    )
    assert all(text in said for text in warned)
    with in_parts():
        again, _ = prepared(
            tmp_path / "c.csv", tmp_path, time_unit="ms", overwrite=True
        )
        assert again.manifest["warnings"] == warned


@pytest.mark.parametrize("days", [1, 3])
def test_the_last_days_of_dates(tmp_path: Path, days: int) -> None:
    clicks = [
        (f"{day}-{visit}", f"i{(visit + step) % 4}", f"2026-03-{day:02}")
        for day in range(1, 11) for visit in range(20) for step in range(3)
    ]  # fmt: skip
    data, _ = prepared(
        write_log(tmp_path / "dates.csv", clicks), tmp_path, test_days=days
    )
    assert (data.train.sessions, data.test.sessions) == (20 * (10 - days), 20 * days)


def test_lines_of_items_have_no_days(tmp_path: Path) -> None:
    lines = write_lines(
        tmp_path / "sessions.txt", ["1 2 3", "2 3 4", "3 4 1", "4 1 2"] * 20
    )
    with pytest.raises(InputError, match="--test-days needs times"):
        prepared(lines, tmp_path, test_days=1)
    assert prepared(lines, tmp_path)[0].trained_until is None
    assert (
        prepared(write_log(tmp_path / "c.csv", small_shop()), tmp_path, overwrite=True)[
            0
        ].trained_until
        is not None
    )
