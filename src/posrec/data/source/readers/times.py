"""Times as logs write them -> int64 milliseconds since 1970 (UTC)."""

import re
from contextlib import suppress
from datetime import UTC, datetime

import polars as pl

from posrec.errors import InputError
from posrec.progress import Progress

MILLISECONDS_PER = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
PREFIXES = {"s": "", "ms": "milli", "us": "micro", "ns": "nano"}
DAY = 86_400_000  # milliseconds
NUMBER = re.compile(r"\s*-?\d+(\.\d*)?([eE][+-]?\d+)?\s*")
# To the second or the millisecond, in UTC or without a zone: what most logs write.
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{3})?(Z?)")
COUNTED_DAYS = (-1, 100_000)  # in 1969 and 2243; times beyond count as theirs
TEXT = (pl.String, pl.Categorical, pl.Enum)
LAYOUTS = (
    "%Y-%m-%dT%H:%M:%S%.fZ",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d",
    "%Y/%m/%dT%H:%M:%S%.f",
    "%Y/%m/%d",
)


def count_days(times: pl.Series) -> dict[int, int]:
    days = (times // DAY).clip(*COUNTED_DAYS)
    return dict(days.value_counts().iter_rows())


class TimeReader:
    """Reads the times of a log. The unit of numbers is guessed once and reported."""

    def __init__(
        self, progress: Progress, unit: str | None = None, layout: str | None = None
    ) -> None:
        self.layout = None if layout is None else checked_layout(layout)
        if unit is not None and unit not in MILLISECONDS_PER:
            units = ", ".join(MILLISECONDS_PER)
            raise InputError(f"time unit {unit!r} is not known; choose one of {units}")
        self.progress = progress
        self.unit = unit

    def __call__(self, column: pl.Series) -> pl.Series:
        """Milliseconds, with null where a value can't be read."""
        if isinstance(column.dtype, pl.Date | pl.Datetime):
            return column.cast(pl.Datetime("ms")).cast(pl.Int64)
        if self.layout is not None:
            return parse_layout(column.cast(pl.String).str.strip_chars(), self.layout)
        if column.dtype.is_numeric():
            return self.scale(column)
        if not isinstance(column.dtype, TEXT):
            return nulls(len(column))
        column = column.cast(pl.String)
        first = next(iter(column.drop_nulls().head(1)), "")
        ways = [parse_text, self.read_numbers]
        if NUMBER.fullmatch(first):
            ways.reverse()
        times = ways[0](column)
        # The first value may be the broken one. The way that reads more is right.
        if 2 * times.null_count() > len(column):
            times = min(times, ways[1](column), key=pl.Series.null_count)
        return times

    def read_numbers(self, column: pl.Series) -> pl.Series:
        integers = column.cast(pl.Int64, strict=False)
        if integers.null_count() == column.null_count():
            return self.scale(integers)
        return self.scale(column.str.strip_chars().cast(pl.Float64, strict=False))

    def find_unit(self, numbers: pl.Series) -> None:
        """From the number in the middle: one of them may be wrong."""
        numbers = numbers.cast(pl.Float64).abs()
        numbers = numbers.filter(numbers.is_finite().fill_null(False)).sort()
        if len(numbers):
            self.unit = guess_unit(float(numbers[len(numbers) // 2]))
            self.progress.message(
                f"times read as {PREFIXES[self.unit]}seconds (pass --time-unit if that is wrong)"
            )

    def scale(self, numbers: pl.Series) -> pl.Series:
        if self.unit is None:
            self.find_unit(numbers)
        factor = MILLISECONDS_PER[self.unit or "ms"]
        if numbers.dtype.is_integer():
            integers = numbers.cast(pl.Int64, strict=False)
            if factor < 1:
                return integers // round(1 / factor)
            # A number that would not fit into 64 bits is not a time.
            limit = 2**62 // int(factor)
            fits = integers.is_between(-limit, limit)
            return integers.set(~fits, None) * int(factor)
        scaled = (numbers.cast(pl.Float64) * factor).round()
        return scaled.cast(pl.Int64, strict=False)


def checked_layout(layout: str) -> str:
    """A layout such as `%d.%m.%Y %H:%M:%S`, as polars reads it; raises if it is not one."""
    layout = layout.replace(".%f", "%.f")  # Python's fraction of a second
    moment = datetime(2026, 9, 17, 8, 0, 46, tzinfo=UTC)
    # A layout that can't read the date back from what it wrote lacks the day or another part.
    with suppress(pl.exceptions.PolarsError):
        written = pl.Series([moment]).dt.strftime(layout)
        read = written.str.to_datetime(layout, time_unit="ms", strict=False)[0]
        if read is not None and read.date() == moment.date():
            return layout
    raise InputError(
        f"--time-format {layout!r} does not describe a date and time; write e.g. "
        "'%d.%m.%Y %H:%M:%S' (day, month, year, hour, minute, second)"
    )


def guess_unit(magnitude: float) -> str:
    """Today is about 2e9 seconds after 1970; each smaller unit has three digits more."""
    for unit, limit in (("s", 1e11), ("ms", 1e14), ("us", 1e17)):
        if magnitude < limit:
            return unit
    return "ns"


def parse_text(column: pl.Series) -> pl.Series:
    """ISO dates and times; null where a text is neither."""
    first = ISO.fullmatch(str(column[0])) if len(column) else None
    times = nulls(len(column))
    if first is not None:
        # polars is several times faster if every part of a layout has a fixed width.
        digits = ".%3f" if first[2] else ""
        times = parse_layout(column, f"%Y-%m-%d{first[1]}%H:%M:%S{digits}{first[3]}")
    if times.null_count() == column.null_count():
        return times
    text = column.str.strip_chars().str.replace(r" ?UTC$", "Z")
    text = text.str.replace(r"^(\S{8,10}) ", "${1}T")
    for layout in LAYOUTS:
        times = times.zip_with(times.is_not_null(), parse_layout(text, layout))
        if times.null_count() == column.null_count():
            break
    return times


def parse_moment(text: str) -> int:
    """The milliseconds of a date or time that an option names."""
    moment: int | None = parse_text(pl.Series([text], dtype=pl.String))[0]
    if moment is None:
        raise InputError(
            f"--since and --until are dates or times, such as 2026-09-01 or 2026-09-01T12:00Z, "
            f"not {text!r}"
        )
    return moment


def nulls(count: int) -> pl.Series:
    return pl.repeat(None, count, dtype=pl.Int64, eager=True)


def parse_layout(text: pl.Series, layout: str) -> pl.Series:
    """Milliseconds, where a text has this layout; without a zone it is UTC."""
    times = text.str.to_datetime(layout, time_unit="ms", strict=False, cache=False)
    return times.cast(pl.Int64)
