"""Figures of feedback by hand, and by simulation: a split test that is read again and again, of
visitors who differ."""

import math
from datetime import UTC, date, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


def row(
    answer: str, event: str, item: str, day: float = 0, **more: object
) -> dict[str, object]:
    """`answer` is such as a1: the run's name, and a number."""
    given = {
        "time": START + int(day * DAY),
        "answer": answer,
        "event": event,
        "item": item,
        "session": answer,
    }
    run = {
        "run": f"hash of {answer[0]}",
        "name": answer[0],
        "signed": True,
        "explored": False,
    }
    return {**run, "rank": 1 if event == "shown" else None, **given, **more}


def frame(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame(
        [{name: one.get(name) for name in COLUMNS} for one in rows],
        schema=feedback_schema(),
    )


def shown(
    answer: str, visitor: str, items: str = "x", **more: object
) -> list[dict[str, object]]:
    return [
        row(answer, "shown", item, visitor=visitor, rank=place + 1, **more)
        for place, item in enumerate(items)
    ]


def test_new_items_that_were_explored_are_compared_with_the_others() -> None:
    """Three answers with an explored item and two others each; clicks on one of the former and two
    of the latter."""
    answers = [
        one
        for number, visitor in enumerate("vww", start=1)
        for one in (
            *shown(f"a{number}", visitor, "xy"),
            row(f"a{number}", "shown", "new", explored=True),
        )
    ]
    clicks = [
        row("a1", "clicked", "new"),
        row("a1", "clicked", "x"),
        row("a3", "clicked", "y"),
    ]
    new, others = ClickThrough(frame(*answers, *clicks)).by("explored")
    assert (
        new.group,
        new.answers,
        new.shown,
        new.clicks,
        new.ratios["clicks"].mean,
    ) == ("new items", 3, 3, 1, 1 / 3)
    assert (others.group, others.answers, others.shown, others.clicks) == (
        "other items",
        3,
        6,
        2,
    )


def test_figures_by_hand() -> None:
    """Visitor v: two answers, clicks 1 and 0; visitor w: one answer, two clicks, a cart and a
    purchase of 9.5."""
    found = ClickThrough(
        frame(
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
            row("b1", "shown", "x", signed=False),
        )
    )
    (run,) = found.by("name")
    counts = (
        run.group,
        run.visitors,
        run.answers,
        run.shown,
        run.clicks,
        run.carts,
        run.purchases,
        run.value,
    )
    assert counts == ("a", 2, 3, 6, 3, 1, 1, 9.5)
    # r = 3 clicks / 3 answers = 1; residuals 1 - 2 and 2 - 1; error = sqrt((1 + 1) * 2 / 1) / 3
    half = 2 / 3 * t.ppf(0.975, 1)
    assert run.ratios["clicks"] == Ratio(1.0, (0.0, pytest.approx(1 + half)))
    assert [
        run.ratios[measure].mean for measure in ("carts", "purchases", "value")
    ] == [0.5, 0.5, 4.75]
    ranks = [(rank.group, rank.answers, rank.clicks) for rank in found.by("rank")]
    assert ranks == [("1", 3, 1), ("2", 2, 1), ("3", 1, 1)]
    assert [(day.group, day.answers) for day in found.by("day")] == [
        ("2026-11-01", 2),
        ("2026-11-02", 1),
    ]
    assert (found.unmatched, found.unsigned, found.without_visitor) == (1, 1, 0)
    assert found.fingerprints() == {"a": ["hash of a"]}
    assert found.differences() == []


def test_without_a_visitor_the_session_counts_and_without_both_the_answer() -> None:
    rows = [
        row("a1", "shown", "x", session="s"),
        row("a2", "shown", "x", session="s"),
        row("a3", "shown", "x"),
    ]
    found = ClickThrough(frame(*rows))
    assert (found.total().visitors, found.without_visitor) == (2, 1)


def test_runs_are_compared_while_both_were_shown() -> None:
    """Before b was served, a had ten times the clicks: a holiday, say. That is no difference of a
    to b."""
    rows = []
    for number in range(100):
        rows += [
            *shown(f"a{number}", f"before-{number}", day=number / 50),
            row(f"a{number}", "clicked", "x", day=number / 50),
        ]
    for number in range(100, 200):
        day = number / 50
        rows += [
            *shown(f"a{number}", f"v{number}", day=day),
            *shown(f"b{number}", f"w{number}", day=day),
        ]
        rows += (
            [row(f"{run}{number}", "clicked", "x", day=day) for run in "ab"]
            if number % 10 == 0
            else []
        )
    found = ClickThrough(frame(*rows))
    (compared,) = found.differences()
    assert (compared.higher_mean, compared.lower_mean, compared.visitors) == (
        0.1,
        0.1,
        200,
    )
    assert (compared.since, compared.until, compared.better) == (
        "2026-11-03",
        "2026-11-04",
        None,
    )
    assert "It can't be told yet" in compared.sentence()
    assert "more than 1,000 times as many visitors" in compared.sentence()
    only_b = ClickThrough(
        frame(*(one for one in rows if one["name"] == "b")), since=date(2026, 11, 4)
    )
    assert (only_b.total().answers, only_b.differences()) == (50, [])
    apart = [
        *shown("a1", "v"),
        *shown("a2", "w", day=2),
        *shown("b1", "x", day=1),
    ]  # no answer of a at that time
    assert ClickThrough(frame(*apart)).differences() == []
    with pytest.raises(InputError, match="no event 'shown' since 2027-01-01"):
        ClickThrough(frame(*rows), since=date(2027, 1, 1))


def test_the_difference_is_that_of_visitor_totals() -> None:
    """Also where a visitor had answers of both runs, which then are no independent visitors."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(600):
        run = "ab"[draw.integers(2)]
        visitor = f"v{draw.integers(150)}"
        rows += shown(f"{run}{number}", visitor, day=0 if number < 2 else 0.5)
        if draw.random() < {"a": 0.2, "b": 0.6}[run]:
            rows.append(row(f"{run}{number}", "clicked", "x"))
    rows += [
        *shown("a-first", "v0"),
        *shown("b-first", "v1"),
        *shown("a-last", "v0", day=1),
        *shown("b-last", "v1", day=1),
    ]
    (compared,) = ClickThrough(frame(*rows)).differences()
    totals = {run: np.zeros((150, 2)) for run in "ab"}
    clicked = {one["answer"] for one in rows if one["event"] == "clicked"}
    for one in rows:
        if one["event"] == "shown":
            totals[str(one["name"])][int(str(one["visitor"])[1:])] += [
                one["answer"] in clicked,
                1,
            ]
    means = {run: sums[:, 0].sum() / sums[:, 1].sum() for run, sums in totals.items()}
    moved = [
        (sums[:, 0] - means[run] * sums[:, 1]) / sums[:, 1].sum()
        for run, sums in totals.items()
    ]
    seen = (totals["a"] + totals["b"])[:, 1] > 0
    error = standard_error((moved[1] - moved[0])[seen])
    p, half = always_valid(means["b"] - means["a"], error, int(seen.sum()))
    assert (compared.higher, compared.better, compared.visitors) == (
        "b",
        "b",
        seen.sum(),
    )
    assert compared.interval is not None
    assert (compared.p, compared.interval[1]) == pytest.approx(
        (p, means["b"] - means["a"] + half)
    )
    assert compared.sentence().startswith("b is better than a: 0.")
    assert (
        compared.visitors_of_both
        == ((totals["a"][:, 1] > 0) & (totals["b"][:, 1] > 0)).sum()
    )


def simulated(
    draw: np.random.Generator, visitors: int, lift: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which visitors are of the second run; clicks and answers of each, with five items in an
    answer."""
    second = draw.random(visitors) < 0.5
    chance = np.minimum(
        draw.beta(0.3, 5.0, visitors) * np.where(second, lift, 1.0), 1.0
    )
    answers = draw.geometric(0.2, visitors)
    return (
        second,
        draw.binomial(5 * answers, chance).astype(float),
        answers.astype(float),
    )


def compared_runs(
    second: np.ndarray, clicks: np.ndarray, answers: np.ndarray
) -> tuple[float, float]:
    influence = influences(clicks * second, answers * second) - influences(
        clicks * ~second, answers * ~second
    )
    means = [clicks[own].sum() / answers[own].sum() for own in (second, ~second)]
    return means[0] - means[1], standard_error(influence)


def test_false_alarms_of_a_report_that_is_read_again_and_again() -> None:
    """Two equal runs, ten looks at 300 more visitors each, 300 times. The ordinary test is right at
    one look, and wrong for one who stops at the first difference."""
    draw = np.random.default_rng(1)
    alarms = dict.fromkeys(
        ("ours", "ordinary, last look", "ordinary, any look", "impressions"), 0
    )
    for _ in range(300):
        second, clicks, answers = simulated(draw, 3000)
        looks = [
            compared_runs(second[:end], clicks[:end], answers[:end])
            for end in range(300, 3001, 300)
        ]
        ordinary = [abs(difference / error) > NORMAL for difference, error in looks]
        alarms["ours"] += any(
            always_valid(*look, 300 * number)[0] < 0.05
            for number, look in enumerate(looks, start=1)
        )
        alarms["ordinary, last look"] += ordinary[-1]
        alarms["ordinary, any look"] += any(ordinary)
        items = [5 * answers[own].sum() for own in (second, ~second)]
        share = clicks.sum() / (5 * answers.sum())
        error = math.sqrt(share * (1 - share) * sum(1 / number for number in items))
        alarms["impressions"] += abs(looks[-1][0] / 5 / error) > NORMAL
    assert alarms["ours"] <= 15  # 5 %
    assert 5 <= alarms["ordinary, last look"] <= 28
    assert alarms["ordinary, any look"] > 45
    assert alarms["impressions"] > 45


def test_the_visitors_that_it_takes_are_enough_in_four_cases_of_five() -> None:
    draw = np.random.default_rng(2)
    difference, error = compared_runs(*simulated(draw, 400_000, lift=1.4))
    units = 1000
    at_first = error * math.sqrt(400_000 / units)
    more = more_units(difference, at_first, units)
    assert more is not None
    found = [
        always_valid(
            *compared_runs(*simulated(draw, units + more, lift=1.4)), units + more
        )[0]
        < 0.05
        for _ in range(200)
    ]
    assert 0.7 < np.mean(found) < 0.9
    assert more_units(0.0, 1.0, 1000) is None
    assert more_units(10.0, 1.0, 1000) == 0


def test_intervals_contain_the_truth_19_times_in_20() -> None:
    draw = np.random.default_rng(3)
    contained = 0
    for _ in range(300):
        _, clicks, answers = simulated(draw, 1000)
        bounds = ratio(clicks, answers).interval
        assert bounds is not None
        contained += bounds[0] <= 5 * 0.3 / 5.3 <= bounds[1]
    assert contained / 300 > 0.9
    assert ratio(np.zeros(100), np.ones(100)) == Ratio(
        0.0, (0.0, pytest.approx(0.0362, abs=1e-4))
    )
    assert ratio(np.ones(1), np.ones(1)) == Ratio(1.0)


@settings(max_examples=10)
@given(order=st.permutations(range(12)), again=st.lists(st.integers(0, 11), max_size=5))
def test_the_order_of_rows_and_what_is_reported_twice_change_nothing(
    order: list[int], again: list[int]
) -> None:
    rows = [
        one
        for number in range(4)
        for one in shown(f"{'ab'[number % 2]}{number}", f"v{number}", "xy")
    ]
    rows += [
        row("a0", "clicked", "x"),
        row("b1", "clicked", "y"),
        row("b3", "bought", "x", value=2.0),
        row("a2", "carted", "x"),
    ]
    expected = ClickThrough(frame(*rows)).as_json()
    assert (
        ClickThrough(frame(*(rows[place] for place in [*order, *again]))).as_json()
        == expected
    )


def of_day(number: int, rate: float, visitors: int = 1000) -> Group:
    half = 2 * math.sqrt(rate * (1 - rate) / visitors)
    one = Ratio(rate, (max(0.0, rate - half), rate + half))
    day = date.fromordinal(date(2026, 10, 1).toordinal() + number).isoformat()
    return Group(day, visitors, visitors, visitors, 0, 0, 0, 0.0, {"clicks": one})


def test_a_day_outside_the_range_of_the_weeks_before_is_named() -> None:
    usual = [of_day(number, 0.10 + 0.01 * (number % 7)) for number in range(20)]
    assert unusual_days(usual) == []
    assert (
        unusual_days([*usual, of_day(20, 0.02, visitors=10)]) == []
    )  # its interval is wide
    (fewer,) = unusual_days([*usual, of_day(20, 0.02)])
    assert fewer.sentence().startswith(
        "2026-10-21: fewer clicks per answer, 0.02 (0.0111 to 0.0289)"
    )
    assert fewer.sentence().endswith("(0.1 to 0.16).")
    (more,) = unusual_days([*usual, of_day(20, 0.4)])
    assert "more clicks per answer" in more.sentence()
    gap = unusual_days([*usual, of_day(22, 0.12)])
    assert [day.day for day in gap if day.rate is None] == ["2026-10-21", "2026-10-22"]
    small = [of_day(20, 0.5, visitors=3)]  # few visitors make no range
    assert [day.day for day in unusual_days([*usual, *small, of_day(21, 0.4)])] == [
        "2026-10-22"
    ]
    assert unusual_days([of_day(0, 0.1), of_day(1, 0.9)]) == []  # too few days


def test_three_runs_are_compared_in_pairs() -> None:
    rows = []
    for number in range(300):
        for run, often in (("a", 10), ("b", 10), ("c", 2)):
            rows += shown(f"{run}{number}", f"{run}{number}", day=number / 100)
            rows += (
                [row(f"{run}{number}", "clicked", "x")] if number % often == 0 else []
            )
    compared = {
        (one.higher, one.lower): one for one in ClickThrough(frame(*rows)).differences()
    }
    assert {pair: one.better for pair, one in compared.items()} == {
        ("b", "a"): None,
        ("c", "a"): "c",
        ("c", "b"): "c",
    }
    rows = [one for one in rows if one["name"] != "b"]
    (alone,) = ClickThrough(frame(*rows)).differences()
    of_three = compared["c", "a"]
    assert of_three.p == pytest.approx(3 * alone.p)
    assert of_three.interval is not None
    assert alone.interval is not None
    assert of_three.interval[0] < alone.interval[0]
