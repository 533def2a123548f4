"""What became of answers that were shown, from `posrec serve --feedback`: by run, rank and day.

An impression is an item that was shown as part of an answer, however often it was reported. Figures
are ratios of sums over visitors: clicks to answers, purchases to visitors. The answers to one
visitor are not independent, so errors are estimated over visitors (significance.py).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
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

IMPRESSION = ["answer", "item"]  # the columns that identify an item of an answer
COUNTED = {"clicked": "clicks", "carted": "carts", "bought": "purchases"}
# Each measure, and what it is divided by.
MEASURES = {
    "clicks": "answers",
    "carts": "visitors",
    "purchases": "visitors",
    "value": "visitors",
}
# The normal quantile of 80 %, the chance that the estimated visitors are enough.
POWER = 0.8416
MOST_TIMES = 1000  # no estimate beyond this many times the visitors so far
DAYS_BEFORE = 28  # a day is compared with the range of the days before it
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
        if self.interval is None:
            return short(self.mean)
        return f"{short(self.mean)} ({between(*self.interval)})"


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
    own: dict[str, int] = field(default_factory=dict)  # the shop's own events


@dataclass(frozen=True)
class Difference:
    """Of one measure of two runs while both were shown; it may be looked at often."""

    measure: str
    higher: str  # the run with the higher figure
    lower: str
    higher_mean: float
    lower_mean: float
    # Of the higher figure minus the lower; None where all visitors are alike.
    interval: tuple[float, float] | None
    p: float  # corrected for the number of pairs of runs
    visitors: int
    visitors_of_both: int  # who had answers of both runs
    # About how many more would show a difference of this size; None if too many.
    more_visitors: int | None
    since: str
    until: str

    @property
    def better(self) -> str | None:
        return self.higher if self.p < LEVEL else None

    def sentence(self) -> str:
        days = f"on {self.since}"
        if self.since < self.until:
            days = f"from {self.since} to {self.until}"
        evidence = f"{plural(self.visitors, 'visitor')} {days}"
        if not self.higher_mean:
            return (
                "It can't be told yet which run is better: "
                f"no {self.measure} of {evidence} are reported."
            )
        figures = f"{short(self.higher_mean)} {per_unit(self.measure)}"
        figures += f" against {short(self.lower_mean)}"
        if self.lower_mean:
            figures += f", {100 * (self.higher_mean / self.lower_mean - 1):+.1f} %"
        if self.interval is not None:
            interval = f"95 % interval of the difference {between(*self.interval)}"
            evidence = f"{interval}; {evidence}"
        claim = f"{self.higher} is better than {self.lower}"
        if self.better:
            return f"{claim}: {figures} ({evidence})."
        open_question = f"It can't be told yet whether {claim}: {figures} ({evidence})."
        return f"{open_question} {self.what_it_takes()}"

    def what_it_takes(self) -> str:
        if self.interval is None:
            return "It takes more visitors."
        if self.more_visitors is None:
            return (
                f"It would take more than {MOST_TIMES:,} times as many visitors "
                "to show so small a difference."
            )
        return (
            "If the difference stays as it is, "
            f"about {self.more_visitors:,} more visitors will show it."
        )


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
        usual = f"any of the {self.days} days before ({between(self.low, self.high)})"
        rate = f"{fewer} {per_unit(self.measure)}, {self.rate}"
        return f"{self.day}: {rate}, than on {usual}."


def short(number: float) -> str:
    """
    >>> short(0.082345), short(-12.0), short(123456.7)
    ('0.0823', '-12', '123,457')
    """
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def between(low: float, high: float) -> str:
    return f"{short(low)} to {short(high)}"


class ClickThrough:
    """The figures of feedback. Days are those of UTC.

    Attributes:
        impressions: a row for each item of an answer that was shown, with what became of it.
        unmatched: events of items that were not reported as shown.
        without_visitor: answers whose visitor is not known; each counts as a visitor of its own.
        without_value: purchases whose value was not given.
    """

    def __init__(self, rows: pl.DataFrame, since: date | None = None) -> None:
        reported = rows.filter(pl.col("event") == "shown").sort("time")
        shown = reported.unique(IMPRESSION, keep="first", maintain_order=True)
        events = later_events(rows)
        self.unmatched = len(events.join(shown, on=IMPRESSION, how="anti"))
        self.impressions = impressions_of(shown, events)
        if since is not None:
            since_day = pl.col("day") >= since.isoformat()
            self.impressions = self.impressions.filter(since_day)
        if self.impressions.is_empty():
            raise nothing_shown(since)
        unknown_visitor = pl.col("visitor") == pl.col("answer")
        self.without_visitor = len(self.answers.filter(unknown_visitor))
        unknown_value = pl.col("purchases") & pl.col("value").is_null()
        self.without_value = len(self.impressions.filter(unknown_value))

    @cached_property
    def answers(self) -> pl.DataFrame:
        return self.answers_by("name", "run", "day")

    def answers_by(self, *columns: str) -> pl.DataFrame:
        """A row for each answer and value of the columns."""
        first = pl.col("time", "visitor").first()
        sums = pl.col(*MEASURES).sum()
        own = pl.col("own").explode()
        by_answer = self.impressions.group_by("answer", *columns, maintain_order=True)
        return by_answer.agg(first, sums, own, shown=pl.len())

    def by(self, column: str) -> list[Group]:
        """By run (`name`), `day`, `rank`, or `explored`: new items that `explore` added."""
        return groups(self.answers_by(column), column)

    def runs(self) -> list[Group]:
        """By run; two runs that are compared, while both were shown."""
        names = self.answers["name"].unique().to_list()
        if len(names) == 2:
            together = shown_together(self.answers, names)
            if together["name"].n_unique() == 2:
                return groups(together, "name")
        return self.by("name")

    def total(self) -> Group:
        everything = self.answers.with_columns(all=pl.lit("all"))
        return groups(everything, "all")[0]

    def fingerprints(self) -> dict[str, list[str]]:
        """Of the runs that were served under a name, the latest last."""
        runs = self.answers.group_by("name", "run").agg(pl.col("time").max())
        by_name = runs.sort("time").group_by("name", maintain_order=True)
        return dict(by_name.agg("run").iter_rows())

    def differences(self, measure: str = "clicks") -> list[Difference]:
        """Of every two runs shown at the same time, with a level for all pairs (Bonferroni)."""
        names = self.answers["name"].unique().sort()
        together = [
            shown_together(self.answers, pair) for pair in combinations(names, 2)
        ]
        compared = [answers for answers in together if answers["name"].n_unique() == 2]
        return [difference(answers, measure, len(compared)) for answers in compared]

    def as_json(self, measure: str = "clicks") -> dict[str, Any]:
        days = self.by("day")
        fingerprints = self.fingerprints()
        runs = [
            asdict(run) | {"fingerprints": fingerprints[run.group]}
            for run in self.runs()
        ]
        differences = [
            asdict(pair) | {"better": pair.better, "sentence": pair.sentence()}
            for pair in self.differences(measure)
        ]
        return {
            "total": asdict(self.total()),
            "by_run": runs,
            "by_rank": [asdict(rank) for rank in self.by("rank")],
            "by_explored": [asdict(items) for items in self.by("explored")],
            "by_day": [asdict(day) for day in days],
            "differences": differences,
            "unusual_days": [asdict(day) for day in unusual_days(days, measure)],
            "unmatched": self.unmatched,
            "without_visitor": self.without_visitor,
            "without_value": self.without_value,
        }


def later_events(rows: pl.DataFrame) -> pl.DataFrame:
    """What became of each impression: whether it was clicked, put into the cart, bought, and the
    shop's own events."""
    event = pl.col("event")
    happened = {name: (event == kind).any() for kind, name in COUNTED.items()}
    own = event.filter(~event.is_in([*COUNTED])).unique()
    by_impression = rows.filter(event != "shown").group_by(IMPRESSION)
    return by_impression.agg(**happened, value=pl.col("value").max(), own=own)


def impressions_of(shown: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    shown = shown.drop("value", "event")
    joined = shown.join(events, on=IMPRESSION, how="left", maintain_order="left")
    began = pl.from_epoch(pl.col("time").first().over("answer"), time_unit="ms")
    new = pl.lit("new items")
    kind = pl.when("explored").then(new).otherwise(pl.lit("other items"))
    return joined.with_columns(
        pl.col(*COUNTED.values()).fill_null(value=False),
        visitor=pl.coalesce("visitor", "session"),
        day=began.dt.strftime("%Y-%m-%d"),
        explored=kind,
    )


def nothing_shown(since: date | None) -> InputError:
    message = "the feedback has no event 'shown'"
    if since is not None:
        message += f" since {since}"
    message += ", so there is nothing that clicks could be a share of"
    return InputError(message)


def visitor_totals(answers: pl.DataFrame, by: str) -> pl.DataFrame:
    """A row for each visitor and value of the column `by`, sorted by the latter."""
    by_visitor = answers.group_by(by, "visitor", maintain_order=True)
    sums = pl.col("shown", *MEASURES).sum()
    own = pl.col("own").explode()
    totals = by_visitor.agg(sums, own, answers=pl.len(), visitors=1)
    return totals.sort(by, maintain_order=True)


def groups(answers: pl.DataFrame, by: str) -> list[Group]:
    """The figures of the answers by their value in the column `by`, sorted by it."""
    result = []
    totals = visitor_totals(answers, by)
    for (group,), visitors in totals.group_by(by, maintain_order=True):
        ratios = {
            measure: ratio(*columns(visitors, measure, unit))
            for measure, unit in MEASURES.items()
        }
        sums = visitors.select(pl.exclude(by, "visitor", "own").sum())
        own = Counter(sorted(visitors["own"].explode().drop_nulls()))
        group_sums = sums.row(0, named=True)
        group = Group(
            str(group), **group_sums, ratios=ratios, own=dict(own.most_common())
        )
        result.append(group)
    return result


def columns(frame: pl.DataFrame, *names: str) -> list[Numbers]:
    return [frame[name].to_numpy().astype(np.float64) for name in names]


def ratio(sums: Numbers, counts: Numbers) -> Ratio:
    """The ratio of all sums to all counts, with its 95 % interval over visitors.

    Where all sums are 0, the interval ends at the share that would still leave none among this
    many visitors with a chance of 2.5 %.

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
    of_both = answers.filter(pl.col("name").is_in(names))
    time = pl.col("time")
    times = of_both.group_by("name").agg(first=time.min(), last=time.max())
    together = time.is_between(times["first"].max(), times["last"].min())
    return of_both.filter(together)


def difference(answers: pl.DataFrame, measure: str, pairs: int) -> Difference:
    """Of two runs, one of `pairs` pairs. A visitor whom both answered is one independent unit."""
    totals = visitor_totals(answers, "name")
    means = {}
    moved = {}  # the influence of each visitor
    for (name,), run in totals.group_by("name", maintain_order=True):
        sums, counts = columns(run, measure, MEASURES[measure])
        means[name] = float(sums.sum() / counts.sum())
        moved[name] = run.select("visitor", influence=influences(sums, counts))
    lower, higher = sorted(means, key=means.__getitem__)
    negated = moved[lower].with_columns(-pl.col("influence"))
    signed = pl.concat([moved[higher], negated])
    by_visitor = signed.group_by("visitor", maintain_order=True).sum()
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
    for times in np.geomspace(1, MOST_TIMES, 300):
        smaller = error / math.sqrt(times)
        _, half = always_valid(difference, smaller, int(units * times), level)
        if difference >= half + POWER * smaller:
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
    """Days without answers, or whose 95 % interval lies outside the range of the days before."""
    by_date = {date.fromisoformat(day.group): day for day in days}
    first = min(by_date)
    unusual = []
    for number in range((max(by_date) - first).days + 1):
        today = first + timedelta(number)
        name = today.isoformat()
        if today not in by_date:
            unusual.append(UnusualDay(name, measure))
            continue
        rates = rates_before(today, by_date, measure)
        rate = by_date[today].ratios[measure]
        if len(rates) < FEWEST_DAYS or rate.interval is None:
            continue
        low, high = rate.interval
        if high < min(rates) or low > max(rates):
            day = UnusualDay(name, measure, rate, min(rates), max(rates), len(rates))
            unusual.append(day)
    return unusual


def rates_before(today: date, by_date: dict[date, Group], measure: str) -> list[float]:
    """Without days that have less than a quarter of the median day's visitors."""
    dates = [today - timedelta(back) for back in range(1, DAYS_BEFORE + 1)]
    days = [by_date[day] for day in dates if day in by_date]
    if not days:
        return []
    enough = np.median([day.visitors for day in days]) / 4
    return [day.ratios[measure].mean for day in days if day.visitors >= enough]
