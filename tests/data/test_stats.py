"""The figures of `posrec stats`, worked out by hand and against slow versions."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given

import posrec
from posrec.data.stats import popularity, repeating_sessions, stats
from tests.helpers import command, write_lines, write_log
from tests.nn.test_batch import dataset, sessions_strategy


def test_figures_by_hand(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train", ["a b", "a b a", "c a", "a a"])
    test = write_lines(tmp_path / "test", ["a d b"])
    data = posrec.prepare(train, "sessions", tmp_path / "out", test=test)
    figures = stats(data)
    assert figures.pop("fingerprint") == data.fingerprint
    assert figures.pop("length_histogram") == {
        "2": 3, "3": 2, "4": 0, "5": 0, "6-7": 0, "8-10": 0, "11-15": 0, "16-20": 0, "21-50": 0, "51+": 0,
    }  # fmt: skip
    assert figures == {
        "clicks": 12, "train_samples": 5, "test_samples": 2, "train_sessions": 4, "test_sessions": 1,
        "validation_sessions": 1, "items": 4, "train_items": 3,
        # Sequences of 2; 2, 3; 2; 2; 2, 3 clicks.
        "average_length": round(16 / 7, 4), "average_session_length": 2.4, "longest": 3,
        "length_percentiles": {"50": 2, "90": 3, "99": 3},
        "repeating_sessions": 2,
        # Training clicks: a 6, b 2, c 1.
        "popularity": {
            "share_of_top": {"1%": 0.6667, "10%": 0.6667, "20%": 0.6667, "50%": 0.8889},
            "gini": round((2 * (1 * 1 + 2 * 2 + 3 * 6) / 9 - 4) / 3, 4),
            "most_clicks": 6, "median_clicks": 2, "fewest_clicks": 1,
        },
        "clicks_by_day": {}, "warnings": [],  # lines of items have no times
    }  # fmt: skip


def test_clicks_by_day(tmp_path: Path) -> None:
    """A session counts on the day on which it begins; the last month has a day without clicks."""
    days = {
        "2026-08-31T23:59:59Z": 3,
        "2026-09-01T00:00:00Z": 40,
        "2026-09-03T12:00:00Z": 5,
    }
    clicks = [
        (f"{day}{n // 2}", f"i{n % 2}", day)
        for day, sessions in days.items()
        for n in range(2 * sessions)
    ]
    out = tmp_path / "out"
    posrec.prepare(write_log(tmp_path / "c.csv", clicks), out=out, min_support=1)
    shown = json.loads(command("stats", out, "--json").out)
    assert shown["clicks_by_day"] == {
        "2026-08-31": 6,
        "2026-09-01": 80,
        "2026-09-03": 10,
    }
    lines = [line.split() for line in command("stats", out).out.splitlines()]
    assert ["days", "with", "clicks", "3", "2026-08-31", "to", "2026-09-03;"] in [
        line[:7] for line in lines
    ]
    assert ["2026-08", "6", "·" * 30 + "▁"] in lines
    assert ["2026-09", "90", "█·▁"] in lines


@given(sessions_strategy)
def test_sessions_that_repeat_an_item(sessions: list[list[int]]) -> None:
    whole = dataset(sessions)
    repeating = [len(set(session)) < len(session) for session in sessions]
    assert repeating_sessions(whole) == sum(repeating)
    assert repeating_sessions(whole.part(1, len(sessions))) == sum(repeating[1:])


@given(sessions_strategy)
def test_gini_is_half_the_mean_difference(sessions: list[list[int]]) -> None:
    numbers: dict[int, int] = {}
    numbered = [
        [numbers.setdefault(item, len(numbers) + 1) for item in session]
        for session in sessions
    ]
    counts = list(Counter(item for session in numbered for item in session).values())
    mean = sum(counts) / len(counts)
    difference = (
        sum(abs(one - other) for one in counts for other in counts) / len(counts) ** 2
    )
    figures = popularity(dataset(numbered), len(counts))
    assert figures["gini"] == pytest.approx(difference / (2 * mean), abs=1e-4)
    assert (figures["most_clicks"], figures["fewest_clicks"]) == (
        max(counts),
        min(counts),
    )
