"""What became of answers that were shown, from `posrec serve --feedback`: by run, rank and day.

An impression is an item that was shown as part of an answer, however often it was reported. Figures
are ratios of sums over visitors: clicks to answers, purchases to visitors. The answers to one
visitor are not independent, so errors are estimated over visitors (significance.py).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.errors import InputError, plural
from posrec.evaluation.significance import (
    LEVEL,
    always_valid,
    influences,
    margin,
    standard_error,
)

COUNTED = {"clicked": "clicks", "carted": "carts", "bought": "purchases"}
# Each measure, and what it is divided by.
MEASURES = {
    "clicks": "answers",
    "carts": "visitors",
    "purchases": "visitors",
    "value": "visitors",
}
POWER = 0.8416  # the normal quantile of 80 %: the chance that the visitors who are asked for will be enough
FORESEEABLE = 1000  # times as many visitors: beyond that no number is given
WEEKS = 28  # days before a day, whose range it is compared with
FEWEST_DAYS = 7

Numbers = npt.NDArray[np.float64]


def per_unit(measure: str) -> str:
    """
    >>> per_unit("clicks")
    'clicks per answer'
    """
    return f"{measure} per {MEASURES[measure][:-1]}"


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 95 % interval, which a single visitor does not have."""

    mean: float
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        return short(self.mean) + (
            ""
            if self.interval is None
            else " ({} to {})".format(*map(short, self.interval))
        )


@dataclass(frozen=True)
class Group:
    """The answers of one run, rank or day; of a rank, those with an item at this rank."""

    group: str
    visitors: int
    answers: int
    shown: int  # items
    clicks: int
    carts: int
    purchases: int
    value: float
    ratios: dict[str, Ratio]  # by measure: clicks per answer, the others per visitor


@dataclass(frozen=True)
class Difference:
    """Of one measure of two runs while both were shown; it may be looked at often."""

    measure: str
    higher: str  # the run with the higher figure
    lower: str
    higher_mean: float
    lower_mean: float
    interval: (
        tuple[float, float] | None
    )  # of the higher figure minus the lower; None where all visitors are alike
    p: float  # corrected for the number of pairs of runs
    visitors: int
    visitors_of_both: int  # who had answers of both runs
    more_visitors: (
        int | None
    )  # about as many show a difference of this size; None for very many
    since: str
    until: str

    @property
    def better(self) -> str | None:
        return self.higher if self.p < LEVEL else None

    def sentence(self) -> str:
        figures = f"{short(self.higher_mean)} {per_unit(self.measure)} against {short(self.lower_mean)}"
        days = (
            f"from {self.since} to {self.until}"
            if self.since < self.until
            else f"on {self.since}"
        )
        counted = f"{plural(self.visitors, 'visitor')} {days}"
        if not self.higher_mean:
            return f"It can't be told yet which run is better: no {self.measure} of {counted} are reported."
        if self.lower_mean:
            figures += f", {100 * (self.higher_mean / self.lower_mean - 1):+.1f} %"
        if self.interval is not None:
            low, high = map(short, self.interval)
            counted = f"95 % interval of the difference {low} to {high}; {counted}"
        if self.better:
            return f"{self.higher} is better than {self.lower}: {figures} ({counted})."
        start = f"It can't be told yet whether {self.higher} is better than {self.lower}: {figures} ({counted})."
        if self.interval is None:
            return f"{start} It takes more visitors."
        if self.more_visitors is None:
            return f"{start} It would take more than {FORESEEABLE:,} times as many visitors to show so small a difference."
        return f"{start} If the difference stays as it is, about {self.more_visitors:,} more visitors will show it."


@dataclass(frozen=True)
class UnusualDay:
    """A day outside the range of the weeks before, or, if `rate` is None, without answers."""

    day: str
    measure: str
    rate: Ratio | None = None
    low: float = 0.0  # the range of the days before
    high: float = 0.0
    days: int = 0

    def sentence(self) -> str:
        if self.rate is None:
            return f"{self.day}: no answers were reported as shown."
        fewer = "fewer" if self.rate.mean < self.low else "more"
        before = f"any of the {self.days} days before ({short(self.low)} to {short(self.high)})"
        return f"{self.day}: {fewer} {per_unit(self.measure)}, {self.rate}, than on {before}."


def short(number: float) -> str:
    """
    >>> short(0.082345), short(-12.0), short(123456.7)
    ('0.0823', '-12', '123,457')
    """
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


class ClickThrough:
    """The figures of feedback. Days are those of UTC.

    Attributes:
        impressions: a row for each item of an answer that was shown, with what became of it.
        unmatched: clicks, carts and purchases of items that were not reported as shown.
        unsigned: rows of answers that the server did not give; they are not counted elsewhere.
        without_visitor: answers whose visitor is not known; each counts as a visitor of its own.
        without_value: purchases whose value was not given.
    """

    def __init__(self, rows: pl.DataFrame, since: date | None = None) -> None:
        keys = ["answer", "item"]
        total_rows = len(rows)
        rows = rows.filter("signed")
        self.unsigned = total_rows - len(rows)
        shown = (
            rows.filter(pl.col("event") == "shown")
            .sort("time")
            .unique(keys, keep="first", maintain_order=True)
        )
        counts = [
            (pl.col("event") == event).any().alias(name)
            for event, name in COUNTED.items()
        ]
        later = (
            rows.filter(pl.col("event") != "shown")
            .group_by(keys)
            .agg(*counts, pl.col("value").max())
        )
        self.unmatched = len(later.join(shown, on=keys, how="anti"))
        impressions = (
            shown.drop("value", "event", "signed")
            .join(later, on=keys, how="left", maintain_order="left")
            .with_columns(
                pl.col(*COUNTED.values()).fill_null(value=False),
                visitor=pl.coalesce("visitor", "session"),
                day=pl.from_epoch(
                    pl.col("time").first().over("answer"), time_unit="ms"
                ).dt.strftime("%Y-%m-%d"),
                explored=pl.when("explored")
                .then(pl.lit("new items"))
                .otherwise(pl.lit("other items")),
            )
        )
        self.impressions = (
            impressions
            if since is None
            else impressions.filter(pl.col("day") >= since.isoformat())
        )
        if not len(self.impressions):
            start = "" if since is None else f" since {since}"
            unsigned = (
                f" ({self.unsigned:,} rows are of answers that the server did not give)"
                if self.unsigned
                else ""
            )
            raise InputError(
                f"the feedback has no event 'shown'{start}, so there is nothing that clicks could be a share of"
                + unsigned
            )
        self.without_visitor = len(
            self.answers.filter(pl.col("visitor") == pl.col("answer"))
        )
        self.without_value = len(
            self.impressions.filter(pl.col("purchases") & pl.col("value").is_null())
        )

    @cached_property
    def answers(self) -> pl.DataFrame:
        return self.parts_of_answers("name", "run", "day").with_columns(
            all=pl.lit("all")
        )

    def parts_of_answers(self, *by: str) -> pl.DataFrame:
        """A row for each answer and value of the columns `by`."""
        first = pl.col("time", "visitor").first()
        sums = (pl.len().alias("shown"), pl.col(*MEASURES).sum())
        return self.impressions.group_by("answer", *by, maintain_order=True).agg(
            first, *sums
        )

    def by(self, column: str) -> list[Group]:
        """By run (`name`), `day`, `rank`, or `explored`: new items that `explore` added."""
        return groups(self.parts_of_answers(column), column)

    def total(self) -> Group:
        return groups(self.answers, "all")[0]

    def fingerprints(self) -> dict[str, list[str]]:
        """Of the runs that were served under a name, the latest last."""
        latest = (
            self.answers.group_by("name", "run").agg(pl.col("time").max()).sort("time")
        )
        return dict(latest.group_by("name", maintain_order=True).agg("run").iter_rows())

    def differences(self, measure: str = "clicks") -> list[Difference]:
        """Of every two runs shown at the same time, with a level for all pairs (Bonferroni)."""
        names = self.answers["name"].unique().sort().to_list()
        pairs = [
            (pair, shown_together(self.answers, pair))
            for pair in combinations(names, 2)
        ]
        compared = [
            (pair, answers)
            for pair, answers in pairs
            if answers["name"].n_unique() == 2
        ]
        return [
            difference(answers, measure, *pair, pairs=len(compared))
            for pair, answers in compared
        ]

    def as_json(self, measure: str = "clicks") -> dict[str, Any]:
        days = self.by("day")
        fingerprints = self.fingerprints()
        return {
            "total": asdict(self.total()),
            "by_run": [
                {**asdict(run), "fingerprints": fingerprints[run.group]}
                for run in self.by("name")
            ],
            "by_rank": [asdict(rank) for rank in self.by("rank")],
            "by_explored": [asdict(items) for items in self.by("explored")],
            "by_day": [asdict(day) for day in days],
            "differences": [
                {**asdict(one), "better": one.better, "sentence": one.sentence()}
                for one in self.differences(measure)
            ],
            "unusual_days": [asdict(day) for day in unusual_days(days, measure)],
            "unmatched": self.unmatched,
            "unsigned": self.unsigned,
            "without_visitor": self.without_visitor,
            "without_value": self.without_value,
        }


def visitor_totals(answers: pl.DataFrame, by: str) -> pl.DataFrame:
    """A row for each visitor and value of the column `by`, sorted by the latter."""
    counts = (pl.len().alias("answers"), pl.lit(1).alias("visitors"))
    totals = answers.group_by(by, "visitor", maintain_order=True).agg(
        *counts, pl.col("shown", *MEASURES).sum()
    )
    return totals.sort(by, maintain_order=True)


def groups(answers: pl.DataFrame, by: str) -> list[Group]:
    """The figures of the answers by their value in the column `by`, sorted by it."""
    result = []
    for (group,), own in visitor_totals(answers, by).group_by(by, maintain_order=True):
        ratios = {
            measure: ratio(*columns(own, measure, unit))
            for measure, unit in MEASURES.items()
        }
        sums = own.select(pl.exclude(by, "visitor").sum()).row(0, named=True)
        result.append(Group(str(group), **sums, ratios=ratios))
    return result


def columns(frame: pl.DataFrame, *names: str) -> list[Numbers]:
    return [frame[name].to_numpy().astype(np.float64) for name in names]


def ratio(sums: Numbers, counts: Numbers) -> Ratio:
    """The ratio of all sums to all counts, with its 95 % interval over visitors.

    Where all sums are 0, the interval ends at the share of visitors that would leave none of them
    among so many with a chance of 2.5 %.

    >>> ratio(np.array([2.0, 0.0, 1.0]), np.array([4.0, 2.0, 4.0])).mean
    0.3
    """
    units = len(sums)
    mean = float(sums.sum() / counts.sum())
    if not sums.any():
        return Ratio(0.0, (0.0, 1 - (LEVEL / 2) ** (1 / units)))
    if units == 1:
        return Ratio(mean)
    half = margin(standard_error(influences(sums, counts)), units - 1)
    return Ratio(mean, (max(0.0, mean - half), mean + half))


def shown_together(answers: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The answers of two runs while both were shown."""
    times = [
        answers.filter(pl.col("name") == name)["time"].to_numpy() for name in names
    ]
    first = max(time.min() for time in times)
    last = min(time.max() for time in times)
    return answers.filter(
        pl.col("name").is_in(names), pl.col("time").is_between(first, last)
    )


def difference(
    answers: pl.DataFrame, measure: str, first: str, second: str, pairs: int = 1
) -> Difference:
    """Of two runs, one of so many pairs. A visitor whom both answered is one independent unit."""
    totals = visitor_totals(answers, "name")
    runs = {name: totals.filter(pl.col("name") == name) for name in (first, second)}
    data = {
        name: columns(run, measure, MEASURES[measure]) for name, run in runs.items()
    }
    means = {
        name: float(sums.sum() / counts.sum()) for name, (sums, counts) in data.items()
    }
    lower, higher = sorted(runs, key=means.__getitem__)
    signed = [
        runs[name].select("visitor", influence=sign * influences(*data[name]))
        for name, sign in ((higher, 1), (lower, -1))
    ]
    by_visitor = (
        pl.concat(signed)
        .group_by("visitor", maintain_order=True)
        .agg(pl.col("influence").sum())
    )
    error = standard_error(*columns(by_visitor, "influence"))
    visitors = len(by_visitor)
    gap = means[higher] - means[lower]
    p, half = always_valid(gap, error, visitors, LEVEL / pairs)
    return Difference(
        measure=measure,
        higher=higher,
        lower=lower,
        higher_mean=means[higher],
        lower_mean=means[lower],
        interval=(gap - half, gap + half) if error else None,
        p=min(1.0, pairs * p),
        visitors=visitors,
        visitors_of_both=len(totals) - visitors,
        more_visitors=more_units(gap, error, visitors, LEVEL / pairs),
        since=str(answers["day"].min()),
        until=str(answers["day"].max()),
    )


def more_units(
    difference: float, error: float, units: int, level: float = LEVEL
) -> int | None:
    """How many more units will show this difference in four cases of five; None if too many.

    An error falls with the square root of the number of units.
    """
    for times in np.geomspace(1, FORESEEABLE, 300):
        smaller = error / math.sqrt(times)
        if (
            difference
            >= always_valid(difference, smaller, int(units * times), level)[1]
            + POWER * smaller
        ):
            return rounded(units * float(times - 1))
    return None


def rounded(number: float) -> int:
    """To two digits, upwards.

    >>> rounded(12_345), rounded(7), rounded(0)
    (13000, 7, 0)
    """
    step: int = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return math.ceil(number / step) * step


def unusual_days(days: list[Group], measure: str = "clicks") -> list[UnusualDay]:
    """Days whose 95 % interval lies outside the range of the WEEKS days before, or without answers.

    Days with less than a quarter of the median day's visitors are not part of a range.
    """
    by_date = {date.fromisoformat(day.group): day for day in days}
    first = min(by_date)
    unusual = []
    for today in (
        first + timedelta(number) for number in range((max(by_date) - first).days + 1)
    ):
        if today not in by_date:
            unusual.append(UnusualDay(today.isoformat(), measure))
            continue
        dates = (today - timedelta(back) for back in range(1, WEEKS + 1))
        before = [by_date[one] for one in dates if one in by_date]
        enough = np.median([one.visitors for one in before]) / 4 if before else 0
        rates = [one.ratios[measure].mean for one in before if one.visitors >= enough]
        rate = by_date[today].ratios[measure]
        if len(rates) < FEWEST_DAYS or rate.interval is None:
            continue
        if rate.interval[1] < min(rates) or rate.interval[0] > max(rates):
            unusual.append(
                UnusualDay(
                    today.isoformat(), measure, rate, min(rates), max(rates), len(rates)
                )
            )
    return unusual
