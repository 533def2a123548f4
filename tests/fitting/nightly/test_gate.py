"""The gate by hand: what it lets pass, and the figures in its sentences."""

from typing import Any

import pytest

from posrec.fitting.nightly.gate import COUNTS, SHARES, Gate

GATE = Gate()
USUAL = {
    "clicks": 1000,
    "sessions": 300,
    "unknown": 0.2,
    "one_click": 0.25,
    "repeats": 0.05,
    "at_once": 0.0,
}


def nights(*figures: float, clicks: int = 1000) -> list[dict[str, Any]]:
    """Promoted nights whose new models had these figures."""
    return [
        {
            "metric": "recall@20",
            "new": {"known": figure, "all": figure},
            "latest_day": USUAL | {"clicks": clicks},
        }
        for figure in figures
    ]


def test_a_usual_day_has_the_usual_volume() -> None:
    assert USUAL.keys() == {**COUNTS, **SHARES}.keys()
    assert list(GATE.volume(USUAL, nights(0.5, 0.5))) == []
    nothing = dict.fromkeys(USUAL, 0)
    assert list(GATE.volume(nothing, [])) == []  # the first night


@pytest.mark.parametrize(
    ("figure", "value", "sentence"),
    [
        ("clicks", 333, "the latest day has 333 clicks"),
        ("clicks", 3001, "the latest day has 3,001 clicks"),
        ("sessions", 0, "the latest day has 0 sessions"),
        ("unknown", 0.61, "61.0% of the latest day's clicks are on items that"),
        ("one_click", 0.08, "8.0% of the latest day's sessions have a single click"),
        ("repeats", 0.51, "51.0% of the latest day's clicks repeat the one before"),
        ("at_once", 0.031, "3.1% of the latest day's clicks have the time of the one"),
    ],
)
def test_a_figure_outside_the_factor_is_a_reason(
    figure: str, value: float, sentence: str
) -> None:
    (reason,) = GATE.volume(USUAL | {figure: value}, nights(0.5, 0.5, 0.5))
    assert reason.startswith(sentence)
    assert "the median of 3 promoted nights is" in reason
    assert reason.endswith("more than a factor of 3 apart (--factor)")
    assert list(Gate(factor=1000).volume(USUAL | {figure: value}, nights(0.5))) == []


@pytest.mark.parametrize("figure", [("clicks", 334), ("at_once", 0.03)])
def test_a_figure_within_the_factor_is_none(figure: tuple[str, float]) -> None:
    """A share below 1 % counts as 1 %."""
    name, value = figure
    assert list(GATE.volume(USUAL | {name: value}, nights(0.5))) == []


def test_the_median_of_nights_is_compared() -> None:
    before = nights(0.5, clicks=100) + nights(0.5, 0.5, clicks=1000)
    assert list(GATE.volume(USUAL | {"clicks": 350}, before)) == []


def level(figure: float, *earlier: float) -> list[str]:
    return list(GATE.level({"new": {"all": figure}}, "new", "all", nights(*earlier)))


def test_a_level_may_fall_by_the_tolerance_and_three_times_the_spread() -> None:
    """The sample standard deviation of 0.5, 0.52, 0.54, 0.56 is 0.0258, and their mean 0.53."""
    earlier = (0.5, 0.52, 0.54, 0.56)
    assert level(0.451, *earlier) == []
    (reason,) = level(0.450, *earlier)
    assert reason == (
        "the new model's recall@20 on all clicks is 0.450, and the mean of 4 promoted nights is "
        "0.530: more than 0.079 lower (--tolerance and 3 times their spread)"
    )


def test_the_spread_of_few_nights_is_at_least_a_tenth() -> None:
    assert level(0.5) == []  # the first night
    assert level(0.349, 0.5) == []
    (reason,) = level(0.347, 0.5)
    assert "the mean of 1 promoted night is 0.500: more than 0.152 lower" in reason
    assert len(level(0.347, 0.5, 0.5, 0.5)) == 1
    assert len(level(0.49, 0.5, 0.5, 0.5, 0.5)) == 1


def test_another_metric_is_not_compared() -> None:
    night = {"new": {"all": 0.1}}
    assert list(Gate("mrr@20").level(night, "new", "all", nights(0.5))) == []


def test_the_new_model_must_be_as_good_as_the_running_one_on_both_kinds_of_clicks() -> (
    None
):
    night = {
        "samples": {"known": 100, "all": 120},
        "running": {"known": 0.5, "all": 0.4},
        "error": {"known": 0.01, "all": 0.0},
    }

    def fair(known: float, every: float) -> list[str]:
        new = {"known": known, "all": every}
        return list(GATE.models({**night, "new": new}, []))

    assert fair(0.479, 0.3981) == []
    known, every = fair(0.477, 0.397)
    assert known == (
        "the new model's recall@20 on the clicks whose item both models know is 0.477, and the "
        "running model's 0.500: more than 0.022 lower (--tolerance and 2 standard errors)"
    )
    assert "on all clicks is 0.397, and the running model's 0.400" in every


def test_the_reasons_of_a_night() -> None:
    """Both models fall on a shuffled day; nothing can be said about clicks that are not there."""
    night = {
        "samples": {"known": 100, "all": 120},
        "new": {"known": 0.1, "all": 0.1},
        "running": {"known": 0.1, "all": 0.1},
        "error": {"known": 0.0, "all": 0.0},
    }
    reasons = list(GATE.models(night, nights(0.5)))
    starts = [reason.partition(" is ")[0] for reason in reasons]
    known = "on the clicks whose item both models know"
    assert starts == [
        f"the new model's recall@20 {known}",
        "the new model's recall@20 on all clicks",
        f"the running model's recall@20 {known}",
    ]
    unknown = {"known": None, "all": 0.5}
    night |= {"samples": {"known": 0, "all": 120}, "new": unknown, "running": unknown}
    (reason,) = GATE.models(night, nights(0.5))
    assert reason.startswith("the latest day has only 0 samples of the clicks whose")
