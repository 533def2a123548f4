"""The figures of `posrec stats`, worked out by hand and against slow versions."""

import json
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

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
    bins = ["2", "3", "4", "5", "6-7", "8-10", "11-15", "16-20", "21-50", "51+"]
    histogram = {**dict.fromkeys(bins, 0), "2": 3, "3": 2}
    assert figures.pop("length_histogram") == histogram
    assert figures == {
        "clicks": 12,
        "train_samples": 5,
        "test_samples": 2,
        "train_sessions": 4,
        "test_sessions": 1,
        "validation_sessions": 1,
        "items": 4,
        "train_items": 3,
        "full_test_clicks": 3,
        "new_item_clicks": 1,
        "new_items": 1,  # d
        # Sequences of 2; 2, 3; 2; 2; 2, 3 clicks.
        "average_length": round(16 / 7, 4),
        "average_session_length": 2.4,
        "longest": 3,
        "length_percentiles": {"50": 2, "90": 3, "99": 3},
        "repeating_sessions": 2,
        # Training clicks: a 6, b 2, c 1.
        "popularity": {
            "share_of_top": {"1%": 0.6667, "10%": 0.6667, "20%": 0.6667, "50%": 0.8889},
            "gini": round((2 * (1 * 1 + 2 * 2 + 3 * 6) / 9 - 4) / 3, 4),
            "most_clicks": 6,
            "median_clicks": 2,
            "fewest_clicks": 1,
        },
        "clicks_by_day": {},  # lines of items have no times
        "warnings": [],
    }


def test_clicks_by_day(tmp_path: Path) -> None:
    """A session counts on the day on which it begins."""
    sessions = {"08-31T23:59:59": 3, "09-01T00:00:00": 40, "09-03T12:00:00": 5}
    clicks: list[Any] = [
        (f"{time}{n // 2}", f"i{n % 2}", f"2026-{time}Z")
        for time, count in sessions.items()
        for n in range(2 * count)
    ]
    out = tmp_path / "out"
    posrec.prepare(write_log(tmp_path / "c.csv", clicks), out=out, min_support=1)
    by_day = json.loads(command("stats", out, "--json").out)["clicks_by_day"]
    assert by_day == {"2026-08-31": 6, "2026-09-01": 80, "2026-09-03": 10}
    printed = command("stats", out).out
    lines = [line.split() for line in printed.splitlines()]
    days = ["days", "with", "clicks", "3", "2026-08-31", "to", "2026-09-03;"]
    assert days in [line[:7] for line in lines]
    assert ["2026-08", "6", "·" * 30 + "▁"] in lines
    assert ["2026-09", "90", "█·▁"] in lines


@given(sessions_strategy)
def test_sessions_that_repeat_an_item(sessions: list[list[int]]) -> None:
    data = dataset(sessions)
    repeating = [len(set(session)) < len(session) for session in sessions]
    assert repeating_sessions(data) == sum(repeating)
    assert repeating_sessions(data.part(1, len(sessions))) == sum(repeating[1:])


@given(sessions_strategy)
def test_gini_is_half_the_mean_difference(sessions: list[list[int]]) -> None:
    numbers: dict[int, int] = {}
    numbered = [
        [numbers.setdefault(item, len(numbers) + 1) for item in session]
        for session in sessions
    ]
    counts = list(Counter(item for session in numbered for item in session).values())
    differences = [abs(first - second) for first in counts for second in counts]
    gini = mean(differences) / (2 * mean(counts))
    figures = popularity(dataset(numbered), len(counts))
    assert figures["gini"] == pytest.approx(gini, abs=1e-4)
    assert figures["most_clicks"] == max(counts)
    assert figures["fewest_clicks"] == min(counts)
