"""Times as logs write them -> int64 milliseconds since 1970 (UTC)."""

import re
from datetime import UTC, datetime

import polars as pl

from posrec.errors import InputError
from posrec.progress import Progress

MILLISECONDS_PER = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
UNIT_NAMES = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
DAY = 86_400_000  # milliseconds
NUMBER = re.compile(r"\s*-?\d+(\.\d*)?([eE][+-]?\d+)?\s*")
# To the second or the millisecond, in UTC or without a zone: what most logs write.
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{3})?(Z?)")
COUNTED_DAYS = (
    -1,
    100_000,
)  # times before or after these, from 1969 to 2243, count as theirs
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
    """Reads the times of one log. The unit of numbers is guessed once and reported."""

    def __init__(
        self, progress: Progress, unit: str | None = None, layout: str | None = None
    ) -> None:
        self.layout = None if layout is None else checked_layout(layout)
        if unit is not None and unit not in MILLISECONDS_PER:
            raise InputError(
                f"time unit {unit!r} is not known; choose one of {', '.join(MILLISECONDS_PER)}"
            )
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
            return pl.repeat(None, len(column), dtype=pl.Int64, eager=True)
        column = column.cast(pl.String)
        first = next(iter(column.drop_nulls().head(1)), "")
        ways = (
            [self.read_numbers, parse_text]
            if NUMBER.fullmatch(first)
            else [parse_text, self.read_numbers]
        )
        read = ways[0](column)
        if 2 * read.null_count() > len(
            column
        ):  # The first value may be the broken one. The way that reads more is right.
            read = min(read, ways[1](column), key=pl.Series.null_count)
        return read

    def read_numbers(self, column: pl.Series) -> pl.Series:
        """Numbers that are written as text."""
        whole = column.cast(pl.Int64, strict=False)
        if whole.null_count() > column.null_count():
            return self.scale(column.str.strip_chars().cast(pl.Float64, strict=False))
        return self.scale(whole)

    def find_unit(self, numbers: pl.Series) -> None:
        """From the number in the middle: one of them may be wrong."""
        numbers = numbers.cast(pl.Float64).abs()
        numbers = numbers.filter(numbers.is_finite().fill_null(False)).sort()
        if len(numbers):
            self.unit = guess_unit(float(numbers[len(numbers) // 2]))
            self.progress.message(
                f"times read as {UNIT_NAMES[self.unit]} (pass --time-unit if that is wrong)"
            )

    def scale(self, numbers: pl.Series) -> pl.Series:
        if self.unit is None:
            self.find_unit(numbers)
        factor = MILLISECONDS_PER[self.unit or "ms"]
        if numbers.dtype.is_integer():
            whole = numbers.cast(pl.Int64, strict=False)
            if factor < 1:
                return whole // round(1 / factor)
            # A number that would not fit into 64 bits is not a time.
            return whole.set(
                ~whole.is_between(-(2**62) // int(factor), 2**62 // int(factor)), None
            ) * int(factor)
        finite = numbers.cast(pl.Float64).is_finite().fill_null(False)
        scaled = (numbers.cast(pl.Float64) * factor).round()
        return scaled.set(~finite, None).cast(pl.Int64, strict=False)


def checked_layout(layout: str) -> str:
    """A layout such as `%d.%m.%Y %H:%M:%S` in the form that polars reads; raises if it is none."""
    layout = layout.replace(
        ".%f", "%.f"
    )  # Python's way to write a fraction of a second
    moment = datetime(2026, 9, 17, 8, 0, 46, tzinfo=UTC)
    try:
        # A layout that does not read the date back from what it wrote itself lacks the day or
        # another part.
        written = pl.Series([moment]).dt.strftime(layout)
        read = written.str.to_datetime(layout, time_unit="ms", strict=False)[0]
        if read is not None and read.date() == moment.date():
            return layout
    except pl.exceptions.PolarsError:
        pass
    raise InputError(
        f"--time-format {layout!r} does not describe a date and time; write e.g. '%d.%m.%Y %H:%M:%S' "
        "(day, month, year, hour, minute, second)"
    )


def guess_unit(magnitude: float) -> str:
    """Today is about 2e9 seconds after 1970; each smaller unit has three digits more."""
    return (
        "s"
        if magnitude < 1e11
        else "ms"
        if magnitude < 1e14
        else "us"
        if magnitude < 1e17
        else "ns"
    )


def parse_text(column: pl.Series) -> pl.Series:
    """ISO dates and times; null where a text is neither."""
    first = ISO.fullmatch(str(column[0])) if len(column) else None
    parsed = pl.repeat(None, len(column), dtype=pl.Int64, eager=True)
    if (
        first is not None
    ):  # polars reads a layout in which every part has a fixed width several times faster
        fixed = f"%Y-%m-%d{first[1]}%H:%M:%S{'.%3f' if first[2] else ''}{first[3]}"
        parsed = parse_layout(column, fixed)
    if parsed.null_count() == column.null_count():
        return parsed
    text = (
        column.str.strip_chars()
        .str.replace(r" ?UTC$", "Z")
        .str.replace(r"^(\S{8,10}) ", "${1}T")
    )
    for layout in LAYOUTS:
        if parsed.null_count() == column.null_count():
            break
        parsed = parsed.zip_with(parsed.is_not_null(), parse_layout(text, layout))
    return parsed


def parse_layout(text: pl.Series, layout: str) -> pl.Series:
    """Milliseconds, where a text has this layout; without a zone it is UTC."""
    return text.str.to_datetime(layout, time_unit="ms", strict=False, cache=False).cast(
        pl.Int64
    )
