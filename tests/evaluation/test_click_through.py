"""Figures of feedback by hand, and by simulated split tests of visitors who differ."""

import math
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import t

from posrec.errors import InputError
from posrec.evaluation.click_through import (
    ClickThrough,
    Group,
    Ratio,
    more_units,
    ratio,
    unusual_days,
)
from posrec.evaluation.significance import always_valid, influences, standard_error
from posrec.server.feedback.files import COLUMNS, feedback_schema

DAY = 86_400_000
NORMAL = 1.96  # the 97.5 % quantile
START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)
Row = dict[str, object]


def row(answer: str, event: str, item: str, day: float = 0, **fields: object) -> Row:
    """`answer` is such as a1: the run's name, and a number."""
    return {
        "time": START + int(day * DAY),
        "answer": answer,
        "event": event,
        "item": item,
        "session": answer,
        "run": f"hash of {answer[0]}",
        "name": answer[0],
        "explored": False,
        "rank": 1 if event == "shown" else None,
        **fields,
    }


def shown(answer: str, visitor: str, items: str = "x", day: float = 0) -> list[Row]:
    return [
        row(answer, "shown", item, day, visitor=visitor, rank=rank)
        for rank, item in enumerate(items, start=1)
    ]


def report(*rows: Row, since: date | None = None) -> ClickThrough:
    columns = [{name: row.get(name) for name in COLUMNS} for row in rows]
    return ClickThrough(pl.DataFrame(columns, schema=feedback_schema()), since=since)


def test_new_items_that_were_explored_are_compared_with_the_others() -> None:
    """Three answers, each with an explored item and two others."""
    rows = []
    for answer, visitor in (("a1", "v"), ("a2", "w"), ("a3", "w")):
        rows += shown(answer, visitor, "xy")
        rows.append(row(answer, "shown", "new", explored=True))
    rows.append(row("a1", "clicked", "new"))
    rows.append(row("a1", "clicked", "x"))
    rows.append(row("a3", "clicked", "y"))
    new, others = report(*rows).by("explored")
    assert (new.group, others.group) == ("new items", "other items")
    assert (new.answers, new.shown, new.clicks) == (3, 3, 1)
    assert new.ratios["clicks"].mean == 1 / 3
    assert (others.answers, others.shown, others.clicks) == (3, 6, 2)


def test_figures_by_hand() -> None:
    """Visitor v: two answers, clicks 1 and 0; visitor w: one answer, two clicks, a cart and a
    purchase of 9.5."""
    found = report(
        *shown("a1", "v", "xy"),
        *shown("a1", "v", "xy"),  # reported twice
        *shown("a2", "v", "x"),
        *shown("a3", "w", "xyz", day=1),
        row("a1", "clicked", "x"),
        row("a1", "clicked", "x"),
        row("a3", "clicked", "y"),
        row("a3", "clicked", "z"),
        row("a3", "carted", "z"),
        row("a3", "bought", "z", value=9.5),
        row("a3", "bought", "z", value=9.5),
        row("a3", "clicked", "never shown"),
    )
    (run,) = found.by("name")
    assert (run.group, run.visitors, run.answers, run.shown) == ("a", 2, 3, 6)
    assert (run.clicks, run.carts, run.purchases, run.value) == (3, 1, 1, 9.5)
    # r = 3 clicks / 3 answers = 1; residuals 1 - 2 and 2 - 1; error = sqrt((1 + 1) * 2 / 1) / 3
    half = 2 / 3 * t.ppf(0.975, 1)
    assert run.ratios["clicks"].interval == pytest.approx((0.0, 1 + half))
    means = {measure: ratio.mean for measure, ratio in run.ratios.items()}
    assert means == {"clicks": 1, "carts": 0.5, "purchases": 0.5, "value": 4.75}
    ranks = [(rank.group, rank.answers, rank.clicks) for rank in found.by("rank")]
    assert ranks == [("1", 3, 1), ("2", 2, 1), ("3", 1, 1)]
    days = [(day.group, day.answers) for day in found.by("day")]
    assert days == [("2026-11-01", 2), ("2026-11-02", 1)]
    assert (found.unmatched, found.without_visitor) == (1, 0)
    assert found.fingerprints() == {"a": ["hash of a"]}
    assert found.differences() == []


def test_a_shops_own_events_are_counted_once_for_an_item_of_an_answer() -> None:
    found = report(
        *shown("a1", "v", "xy"),
        *shown("b1", "w", "xy", day=1),
        *shown("a2", "v", "x", day=2),
        row("a1", "favourite", "x"),
        row("a1", "favourite", "x"),
        row("a1", "message", "x"),
        row("a1", "favourite", "y"),
        row("a1", "clicked", "y"),
        row("b1", "favourite", "x", day=1),
        row("b1", "message", "never shown", day=1),
    )
    assert found.total().own == {"favourite": 3, "message": 1}
    assert [run.own for run in found.by("name")] == [
        {"favourite": 2, "message": 1},
        {"favourite": 1},
    ]
    assert [rank.own.get("favourite") for rank in found.by("rank")] == [2, 1]
    assert (found.total().clicks, found.unmatched) == (1, 1)
    assert found.as_json()["by_day"][0]["own"] == {"favourite": 2, "message": 1}


def test_the_table_and_the_sentence_have_one_number_of_visitors() -> None:
    """Run a was shown alone at first, and to visitor v8 both were."""
    rows = []
    for number in range(20):
        run = "a" if number < 5 or number % 2 else "b"
        rows += shown(f"{run}{number}", f"v{number}", day=number / 10)
    rows += shown("a99", "v8", day=1.7)
    found = report(*rows)
    (compared,) = found.differences()
    a, b = found.runs()
    assert (a.group, a.visitors, b.group, b.visitors) == ("a", 7, "b", 7)
    assert (compared.visitors, compared.visitors_of_both) == (13, 1)
    assert a.visitors + b.visitors - compared.visitors_of_both == compared.visitors
    assert found.by("name")[0].visitors == 14
    assert [run["visitors"] for run in found.as_json()["by_run"]] == [7, 7]


def test_without_a_visitor_the_session_counts_and_without_both_the_answer() -> None:
    found = report(
        row("a1", "shown", "x", session="s"),
        row("a2", "shown", "x", session="s"),
        row("a3", "shown", "x"),
    )
    assert (found.total().visitors, found.without_visitor) == (2, 1)


def test_runs_are_compared_while_both_were_shown() -> None:
    """Before b was served, a had ten times the clicks, as on a holiday. That is no difference."""
    rows = []
    for number in range(200):
        day = number / 50
        runs = "a" if number < 100 else "ab"
        for run in runs:
            answer = f"{run}{number}"
            rows += shown(answer, f"visitor of {answer}", day=day)
            if number < 100 or number % 10 == 0:
                rows.append(row(answer, "clicked", "x", day=day))
    (compared,) = report(*rows).differences()
    assert (compared.higher_mean, compared.lower_mean) == (0.1, 0.1)
    assert (compared.visitors, compared.better) == (200, None)
    assert (compared.since, compared.until) == ("2026-11-03", "2026-11-04")
    assert "more than 1,000 times as many visitors" in compared.sentence()
    rows_of_b = [row for row in rows if row["name"] == "b"]
    only_b = report(*rows_of_b, since=date(2026, 11, 4))
    assert (only_b.total().answers, only_b.differences()) == (50, [])
    with pytest.raises(InputError, match="2027-01-01"):
        report(*rows, since=date(2027, 1, 1))


def test_runs_that_were_never_shown_at_the_same_time_are_not_compared() -> None:
    rows = [*shown("a1", "v"), *shown("b1", "w", day=1), *shown("a2", "x", day=2)]
    assert report(*rows).differences() == []


def test_the_difference_is_that_of_visitor_totals() -> None:
    """Also if a visitor had answers of both runs, which then are no independent visitors."""
    draw = np.random.default_rng(0)
    clicks = {"a": np.zeros(150), "b": np.zeros(150)}
    answers = {"a": np.zeros(150), "b": np.zeros(150)}
    # Both runs are shown at the beginning and at the end.
    runs = ["a", "b", *draw.choice(["a", "b"], 596), "a", "b"]
    days = [0, 0, *[0.5] * 596, 1, 1]
    rows = []
    for number, (run, day) in enumerate(zip(runs, days, strict=True)):
        visitor = draw.integers(150)
        rows += shown(f"{run}{number}", f"v{visitor}", day=day)
        answers[run][visitor] += 1
        if draw.random() < {"a": 0.2, "b": 0.6}[run]:
            rows.append(row(f"{run}{number}", "clicked", "x"))
            clicks[run][visitor] += 1
    (compared,) = report(*rows).differences()
    seen = answers["a"] + answers["b"] > 0
    influence = influences(clicks["b"], answers["b"])
    influence -= influences(clicks["a"], answers["a"])
    means = {run: clicks[run].sum() / answers[run].sum() for run in "ab"}
    difference = means["b"] - means["a"]
    error = standard_error(influence[seen])
    p, half = always_valid(difference, error, int(seen.sum()))
    assert (compared.higher, compared.better) == ("b", "b")
    assert compared.visitors == seen.sum()
    assert compared.visitors_of_both == ((answers["a"] > 0) & (answers["b"] > 0)).sum()
    assert compared.p == pytest.approx(p)
    assert compared.interval is not None
    assert compared.interval[1] == pytest.approx(difference + half)
    assert "b is better than a" in compared.sentence()


def simulated(
    draw: np.random.Generator, visitors: int, lift: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether a visitor is of the second run, clicks, answers of five items each."""
    second = draw.random(visitors) < 0.5
    chance = draw.beta(0.3, 5.0, visitors) * np.where(second, lift, 1.0)
    answers = draw.geometric(0.2, visitors)
    clicks = draw.binomial(5 * answers, np.minimum(chance, 1.0))
    return second, clicks.astype(float), answers.astype(float)


def compared_runs(
    second: np.ndarray, clicks: np.ndarray, answers: np.ndarray
) -> tuple[float, float]:
    """The difference of the second run to the first, and its error."""
    influence = influences(clicks * second, answers * second)
    influence -= influences(clicks * ~second, answers * ~second)
    second_mean = clicks[second].sum() / answers[second].sum()
    first_mean = clicks[~second].sum() / answers[~second].sum()
    return second_mean - first_mean, standard_error(influence)


def test_false_alarms_of_a_report_that_is_read_again_and_again() -> None:
    """Two equal runs, ten looks at 300 more visitors each, 300 times. The ordinary test is wrong
    for a reader who stops at the first difference."""
    draw = np.random.default_rng(1)
    ours = 0
    ordinary = 0
    for _ in range(300):
        second, clicks, answers = simulated(draw, 3000)
        sure = False
        sure_by_the_ordinary_test = False
        for end in range(300, 3001, 300):
            difference, error = compared_runs(second[:end], clicks[:end], answers[:end])
            sure |= always_valid(difference, error, end)[0] < 0.05
            sure_by_the_ordinary_test |= abs(difference / error) > NORMAL
        ours += sure
        ordinary += sure_by_the_ordinary_test
    assert ours <= 15  # 5 %
    assert ordinary > 45


def test_the_visitors_that_it_takes_are_enough_in_four_cases_of_five() -> None:
    draw = np.random.default_rng(2)
    difference, error = compared_runs(*simulated(draw, 400_000, lift=1.4))
    error_of_1000 = error * math.sqrt(400)
    more = more_units(difference, error_of_1000, 1000)
    assert more is not None
    units = 1000 + more
    detected = 0
    for _ in range(200):
        looks = compared_runs(*simulated(draw, units, lift=1.4))
        detected += always_valid(*looks, units)[0] < 0.05
    assert 140 < detected < 180
    assert more_units(0.0, 1.0, 1000) is None
    assert more_units(10.0, 1.0, 1000) == 0


def test_intervals_contain_the_truth_19_times_in_20() -> None:
    draw = np.random.default_rng(3)
    contained = 0
    for _ in range(300):
        _, clicks, answers = simulated(draw, 1000)
        low, high = ratio(clicks, answers).interval or (0.0, 0.0)
        contained += low <= 5 * 0.3 / 5.3 <= high
    assert contained > 270
    without_clicks = ratio(np.zeros(100), np.ones(100))
    assert without_clicks.interval == pytest.approx((0.0, 0.0362), abs=1e-4)
    assert ratio(np.ones(1), np.ones(1)) == Ratio(1.0)


@settings(max_examples=10)
@given(order=st.permutations(range(8)), again=st.lists(st.integers(0, 7), max_size=5))
def test_the_order_of_rows_and_what_is_reported_twice_change_nothing(
    order: list[int], again: list[int]
) -> None:
    rows = [
        *shown("a0", "v0", "xy"),
        *shown("b1", "v1", "xy"),
        row("a0", "clicked", "x"),
        row("a0", "carted", "x"),
        row("b1", "clicked", "y"),
        row("b1", "bought", "x", value=2.0),
    ]
    shuffled = [rows[number] for number in [*order, *again]]
    assert report(*shuffled).as_json() == report(*rows).as_json()


def group_of_day(number: int, rate: float, visitors: int = 1000) -> Group:
    half = 2 * math.sqrt(rate * (1 - rate) / visitors)
    clicks = Ratio(rate, (max(0.0, rate - half), rate + half))
    day = str(date(2026, 10, 1) + timedelta(days=number))
    return Group(day, visitors, visitors, visitors, 0, 0, 0, 0.0, {"clicks": clicks})


def test_a_day_outside_the_range_of_the_weeks_before_is_named() -> None:
    usual = [group_of_day(day, 0.10 + 0.01 * (day % 7)) for day in range(20)]

    def unusual(*latest: Group) -> list[str]:
        return [day.sentence() for day in unusual_days([*usual, *latest])]

    assert unusual() == []
    (fewer,) = unusual(group_of_day(20, 0.02))
    assert fewer.startswith("2026-10-21: fewer")
    assert fewer.endswith("(0.1 to 0.16).")
    (more,) = unusual(group_of_day(20, 0.4))
    assert "more clicks" in more
    gap = unusual_days([*usual, group_of_day(22, 0.12)])
    assert [day.day for day in gap if day.rate is None] == ["2026-10-21", "2026-10-22"]
    wide_interval = group_of_day(20, 0.02, visitors=10)
    assert unusual(wide_interval) == []
    few_visitors = group_of_day(20, 0.5, visitors=3)  # which make no range
    (after,) = unusual(few_visitors, group_of_day(21, 0.4))
    assert after.startswith("2026-10-22")
    two_days = [group_of_day(0, 0.1), group_of_day(1, 0.9)]
    assert unusual_days(two_days) == []


def test_three_runs_are_compared_in_pairs() -> None:
    rows = []
    for number in range(300):
        for run, clicked_every in (("a", 10), ("b", 10), ("c", 2)):
            answer = f"{run}{number}"
            rows += shown(answer, answer, day=number / 100)
            if number % clicked_every == 0:
                rows.append(row(answer, "clicked", "x"))
    pairs = {(pair.higher, pair.lower): pair for pair in report(*rows).differences()}
    better = {names: pair.better for names, pair in pairs.items()}
    assert better == {("b", "a"): None, ("c", "a"): "c", ("c", "b"): "c"}
    without_b = [row for row in rows if row["name"] != "b"]
    (alone,) = report(*without_b).differences()
    of_three = pairs["c", "a"]
    assert of_three.p == pytest.approx(3 * alone.p)
    assert of_three.interval is not None
    assert alone.interval is not None
    assert of_three.interval[0] < alone.interval[0]
