"""Click-through of answers that were shown, from the feedback files of `posrec serve --feedback`.

An impression is an item that was shown as part of an answer, once however often it was reported. It is clicked, or
bought, if the same item of the same answer was. The rate is clicks / impressions, with Wilson's 95 % interval

    (p + z^2/2n ± z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n),    z = 1.96

which takes impressions as independent; those of one session are not quite, so it is a little too narrow.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError

if TYPE_CHECKING:
    import polars as pl

Z = 1.959964
FILES = "feedback-*.parquet"
OPEN_FILES = ".open-*.jsonl"  # that a running server is writing
COLUMNS = ("time", "item", "event", "rank", "answer", "run", "signed")


@dataclass(frozen=True)
class Rate:
    """Of the impressions of one rank, day or run."""

    group: str
    shown: int
    clicked: int
    bought: int
    rate: float  # clicked / shown
    low: float
    high: float


@dataclass(frozen=True)
class ClickThrough:
    total: Rate
    by_rank: list[Rate]
    by_day: list[Rate]
    by_run: list[Rate]
    unmatched: int  # clicks and purchases of items that were not reported as shown
    unsigned: int  # rows of answers that the server did not give; they are not counted elsewhere

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_feedback(folder: Path) -> "pl.DataFrame":
    """All rows of a folder of feedback, also those that a running server has not turned into a Parquet file yet.

    Open files are read first: one that is finished meanwhile is read twice, and an impression counts once.
    """
    import polars as pl

    if not folder.is_dir():
        raise InputError(f"{folder} does not exist, or is not a folder")
    types = column_types(COLUMNS)
    try:
        rows = [pl.read_ndjson(lines, schema=types) for lines in map(whole_lines, folder.glob(OPEN_FILES)) if lines]
        rows += [read_file(file) for file in sorted(folder.glob(FILES))]
        if not rows:
            raise InputError(f"{folder} holds no feedback ({FILES}); posrec serve --feedback {folder} writes it")
        return pl.concat(rows)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{folder} holds a file that is not feedback: {str(error).splitlines()[0]}") from None


def read_file(file: Path) -> "pl.DataFrame":
    """A file of a server that did not sign its answers lacks the last column."""
    import polars as pl

    rows = pl.read_parquet(file)
    return (rows if "signed" in rows.columns else rows.with_columns(signed=True)).select(COLUMNS)


def column_types(names: Iterable[str]) -> dict[str, Any]:
    """The types of columns of feedback, by name."""
    import polars as pl

    others = {"time": pl.Int64, "rank": pl.Int32, "signed": pl.Boolean, "explored": pl.Boolean}
    return {name: others.get(name, pl.String) for name in names}


def whole_lines(file: Path) -> bytes:
    """The complete lines of a file that is being written; none if it has been finished and removed."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def click_through(rows: "pl.DataFrame") -> ClickThrough:
    """The rates of all impressions, and by rank, day (UTC) and run."""
    import polars as pl

    keys, total_rows = ["answer", "item"], len(rows)
    rows = rows.filter(pl.col("signed").fill_null(value=True))
    unsigned = total_rows - len(rows)
    shown = rows.filter(pl.col("event") == "shown").sort("time").unique(keys, keep="first", maintain_order=True)
    if not len(shown):
        of_others = f" ({unsigned:,} rows are of answers that the server did not give)" if unsigned else ""
        raise InputError(
            f"the feedback has no event 'shown', so there is nothing that clicks could be a share of{of_others}"
        )
    later = rows.filter(pl.col("event") != "shown").group_by(keys).agg(
        (pl.col("event") == "clicked").any().alias("clicked"), (pl.col("event") == "bought").any().alias("bought")
    )  # fmt: skip
    impressions = shown.join(later, on=keys, how="left", maintain_order="left").with_columns(
        pl.col("clicked", "bought").fill_null(value=False),
        pl.from_epoch("time", time_unit="ms").dt.strftime("%Y-%m-%d").alias("day"),
    )

    def rates(column: str) -> list[Rate]:
        counts = impressions.group_by(column).agg(pl.len(), pl.col("clicked", "bought").sum()).sort(column)
        return [rate(str(group), *numbers) for group, *numbers in counts.iter_rows()]

    total = rate("all", len(impressions), int(impressions["clicked"].sum()), int(impressions["bought"].sum()))
    unmatched = len(later.join(shown, on=keys, how="anti"))
    return ClickThrough(total, rates("rank"), rates("day"), rates("run"), unmatched, unsigned)


def rate(group: str, shown: int, clicked: int, bought: int) -> Rate:
    return Rate(group, shown, clicked, bought, clicked / shown, *wilson(clicked, shown))


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's interval for a share.

    >>> [round(bound, 4) for bound in wilson(10, 100)]
    [0.0552, 0.1744]
    """
    share, square = successes / trials, Z * Z / trials
    middle = share + square / 2
    half = Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))
