"""Times as logs write them, against Python's own datetime."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import polars as pl
import pytest
from hypothesis import given, strategies as st

from posrec.data.source.readers.times import TimeReader, guess_unit
from posrec.progress import SilentProgress
from tests.helpers import RecordingProgress

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
# From 1971 to 2099.
moments = st.integers(365 * 86_400_000, 47_000 * 86_400_000).map(
    lambda milliseconds: EPOCH + milliseconds * MILLISECOND
)


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MILLISECOND


def read(
    values: list[Any], unit: str | None = None, dtype: Any = None
) -> list[int | None]:
    column = pl.Series("time", values, dtype=dtype)
    return TimeReader(SilentProgress(), unit)(column).to_list()


@given(
    st.lists(moments, min_size=1, max_size=5),
    st.sampled_from(["T", " "]),
    st.sampled_from(["", "Z", " UTC"]),
)
def test_iso_with_milliseconds(values: list[datetime], between: str, end: str) -> None:
    plain = [value.replace(tzinfo=None) for value in values]
    texts = [value.isoformat(between, "milliseconds") + end for value in plain]
    assert read(texts) == [milliseconds(value) for value in values]


@given(moments, st.integers(-12 * 60, 14 * 60))
def test_offsets_from_utc(value: datetime, minutes: int) -> None:
    there = value.astimezone(timezone(timedelta(minutes=minutes)))
    assert read([there.isoformat(timespec="milliseconds")]) == [milliseconds(value)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2014-04-07T10:51:09Z", 1_396_867_869_000),
        ("2014-04-07T10:51", 1_396_867_860_000),
        ("2014-04-07", 1_396_828_800_000),
        ("2014/04/07 10:51:09", 1_396_867_869_000),
        ("2014-04-07T10:51:09.123456Z", 1_396_867_869_123),
        ("1396867869", 1_396_867_869_000),
        ("1396867869.277", 1_396_867_869_277),
        ("1396867869277", 1_396_867_869_277),
        ("1396867869277000", 1_396_867_869_277),
        ("1396867869277000000", 1_396_867_869_277),
        ("1.396867869277e9", 1_396_867_869_277),
        ("yesterday", None),
        ("2014-13-07", None),
        ("2014-04-07T25:00:00Z", None),
        ("", None),
    ],
)
def test_layouts_by_hand(text: str, expected: int | None) -> None:
    assert read([text]) == [expected]


def test_layouts_may_mix_and_nulls_stay_null() -> None:
    texts = ["2014-04-07T10:51:09Z", None, "2014-04-07", "no", "2014-04-07 10:51:09"]
    second = 1_396_867_869_000
    assert read(texts) == [second, None, 1_396_828_800_000, None, second]


@given(
    st.lists(st.integers(-(10**12), 10**12), min_size=1),
    st.sampled_from(["s", "ms", "us", "ns"]),
)
def test_whole_numbers_in_a_known_unit(values: list[int], unit: str) -> None:
    nanoseconds = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[unit]
    expected = [value * nanoseconds // 10**6 for value in values]
    assert read(values, unit, pl.Int64) == expected
    assert read([str(value) for value in values], unit) == expected


def test_columns_of_any_type() -> None:
    moment = datetime(2014, 4, 7, 10, 51, 9, 277_000)
    expected = 1_396_867_869_277
    for unit in ("ms", "us", "ns"):
        assert read([moment, None], dtype=pl.Datetime(unit)) == [expected, None]
    there = pl.Datetime("us", "Europe/Amsterdam")
    assert read([moment.replace(tzinfo=UTC)], dtype=there) == [expected]
    assert read([moment.date()]) == [1_396_828_800_000]
    floats = [1_396_867_869.277, float("nan"), float("inf"), None]
    assert read(floats) == [expected, None, None, None]
    assert read([True, False]) == [None, None]
    assert read([timedelta(1)]) == [None]
    assert read([2**63], dtype=pl.UInt64) == [None]
    assert read([2**61, 1], "s") == [None, 1000]  # it must not wrap around


def test_the_unit_is_guessed_once_and_reported() -> None:
    progress = RecordingProgress()
    reader = TimeReader(progress)
    # The middle number decides: one of them may be wrong.
    column = pl.Series([5, 1_396_867_869_277, 1_396_867_869_278])
    for _ in range(2):
        assert reader(column).to_list() == column.to_list()
    (message,) = progress.messages
    assert message.startswith("times read as milliseconds")
    units = [guess_unit(10.0**digits) for digits in (9, 12, 15, 18)]
    assert units == ["s", "ms", "us", "ns"]


@given(st.text(max_size=30))
def test_any_text_is_read_as_a_time_or_as_none(text: str) -> None:
    read([text])
