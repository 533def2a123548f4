"""The latest hours of a log, as the manifest has them, counted by hand."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from posrec.data.prepare.latest import HOUR
from posrec.data.prepare.steps import DAY
from tests.data.reading import prepared
from tests.helpers import Click, in_parts, small_shop, write_log

NOON = 1_700_000_000_000 // DAY * DAY + 2 * DAY + 12 * HOUR
MINUTE = 60_000


def prepared_hours(
    folder: Path, clicks: list[Click], **options: Any
) -> dict[str, list[int]]:
    log = write_log(folder / "clicks.csv", clicks)
    data = prepared(log, folder / "data", min_support=1, **options)
    hours: dict[str, list[int]] = data.manifest["latest_hours"]
    return hours


def latest_day() -> list[Click]:
    """Sessions of one, three and four clicks in the hours of noon, noon and six."""
    evening = NOON + 6 * HOUR
    return [
        ("one", "i1", NOON),
        ("three", "i1", NOON + 59 * MINUTE),
        ("three", "i1", NOON + 61 * MINUTE),  # a repeat, in the hour after the first
        ("three", "i2", NOON + 61 * MINUTE),  # at once
        ("four", "i2", evening),
        ("four", "i2", evening),  # both
        ("four", "i2", evening + 1),  # a repeat
        ("four", "i3", evening + 2),
    ]


EXPECTED = {
    "clicks": [4, 4],
    "sessions": [2, 1],
    "one_click": [1, 0],
    "repeats": [1, 2],
    "at_once": [1, 1],
}


@pytest.mark.parametrize("place", [nullcontext, partial(in_parts, 1000)])
def test_sessions_count_in_the_hour_in_which_they_begin(
    tmp_path: Path, place: Callable[[], AbstractContextManager[None]]
) -> None:
    """Also if the log is prepared in parts."""
    before = small_shop(200, start=NOON - 300 * HOUR)
    yesterday: list[Click] = [
        ("old", "i1", NOON - 19 * HOUR),
        ("old", "i2", NOON - 18 * HOUR),
    ]
    clicks = [*before, *yesterday, *latest_day()]
    with place():
        hours = prepared_hours(tmp_path, clicks, test_days=1)
    begin = NOON // HOUR
    assert hours.pop("hour") == [begin, begin + 6]
    assert hours == EXPECTED


def test_users_are_cut_into_sessions_before_they_are_counted(tmp_path: Path) -> None:
    clicks = [*small_shop(30, start=NOON - 300 * HOUR), *latest_day()]
    for hours_later in (7, 9):
        later = NOON + hours_later * HOUR
        clicks += [("four", "i1", later), ("four", "i2", later + hours_later * MINUTE)]
    clicks += [("four", "i1", NOON + 8 * HOUR)]
    hours = prepared_hours(tmp_path, clicks, gap="30m", test_days=1)
    assert hours["hour"] == [NOON // HOUR + after for after in (0, 6, 7, 8, 9)]
    assert hours["one_click"] == [1, 0, 0, 1, 0]


def test_a_click_with_a_wrong_time_does_not_end_the_log(tmp_path: Path) -> None:
    """It is alone in its session, which is dropped."""
    clicks = [*small_shop(30, start=NOON - 300 * HOUR), *latest_day()]
    clicks += [("next year", "i1", NOON + 365 * DAY)]
    hours = prepared_hours(tmp_path, clicks, test_days=1)
    assert hours["hour"] == [NOON // HOUR, NOON // HOUR + 6]


def test_the_hours_are_those_of_all_test_days(tmp_path: Path) -> None:
    old: list[Click] = [("old", "i1", NOON - 24 * HOUR), ("old", "i2", NOON - 9 * HOUR)]
    clicks = [*small_shop(30, start=NOON - 300 * HOUR), *old, *latest_day()]
    hours = prepared_hours(tmp_path, clicks, test_days=2)
    assert hours["hour"] == [NOON // HOUR + after for after in (-24, 0, 6)]
