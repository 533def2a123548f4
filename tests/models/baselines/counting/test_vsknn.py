"""VSKNN against loops over sets."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, strategies as st

from posrec.config import split_settings
from posrec.models.baselines.counting.vsknn import VSKNN, WEIGHTS, VSKNNConfig
from posrec.training.settings import Settings
from tests.models.baselines.counting.small_logs import (
    fitted,
    logs,
    scores,
    sessions,
    with_rest,
)

LOG = [[1, 2], [2, 3, 2], [4, 5], [1, 3]]
PLAIN = VSKNNConfig(weighting="div", decay="harmonic", idf=0)


def weight(name: str, backward: int, length: int) -> float:
    return {
        "same": 1.0,
        "linear": max(0.0, 1 - 0.1 * backward),
        "div": (length - backward) / length,
        "quadratic": ((length - backward) / length) ** 2,
        "log": 1 / math.log10(backward + 1.7),
        "harmonic": 1 / (backward + 1),
    }[name]


def slowly(
    log: list[list[int]], session: list[int], config: VSKNNConfig
) -> list[float]:
    backward = {item: session[::-1].index(item) for item in session}
    length = len(session)
    candidates = [held for held in reversed(log) if set(held) & set(session)]
    similar = []
    for held in candidates[: config.sample_size]:
        shared = set(held) & set(session)
        weights = [weight(config.weighting, backward[item], length) for item in shared]
        similar.append((sum(weights), held))
    similar.sort(key=lambda pair: -pair[0])
    # Which of two equal ones is nearer depends on the order of sums in the last digit.
    assume(
        len(similar) <= config.k
        or similar[config.k - 1][0] > 1.0001 * similar[config.k][0]
    )
    near: dict[int, float] = {}
    for similarity, held in similar[: config.k]:
        latest = min(backward[item] for item in set(held) & set(session))
        for item in set(held):
            rare = math.log(len(log) / sum(item in other for other in log))
            score = similarity * weight(config.decay, latest, length)
            near[item] = near.get(item, 0) + score * (1 + config.idf * rare)
    return with_rest(near, log)


def test_by_hand() -> None:
    """1 then 2: 2 weighs 1, 1 weighs 1/2. [1, 3] gives 1/2 * 1/2, [2, 3, 2] gives 1, [1, 2] gives
    3/2."""
    [row] = scores(fitted(VSKNN, PLAIN, LOG, items=5), [1, 2])
    assert row[:3] == pytest.approx([1 / 4 + 3 / 2, 1 + 3 / 2, 1 / 4 + 1])
    # Clicked once each; 1 and 3 twice, 2 three times.
    assert row[3:] == pytest.approx([0 / 3 - 1, 0 / 3 - 1])


def test_the_sample_is_the_newest_and_of_equals_the_newest_are_nearest() -> None:
    """Two sessions hold 1; the newer is [1, 3]."""
    for config in (replace(PLAIN, sample_size=1), replace(PLAIN, k=1)):
        [row] = scores(fitted(VSKNN, config, LOG, items=5), [1])
        assert [score > 0 for score in row] == [True, False, True, False, False]


CONFIGS = st.builds(
    VSKNNConfig,
    k=st.integers(1, 9),
    sample_size=st.integers(1, 9),
    weighting=st.sampled_from([*WEIGHTS]),
    decay=st.sampled_from([*WEIGHTS]),
    idf=st.just(1.5),
)


@given(logs, sessions, CONFIGS)
def test_any_log_agrees_with_the_equations(
    log: list[list[int]], session: list[int], config: VSKNNConfig
) -> None:
    expected = slowly(log, session, config)
    [row] = scores(fitted(VSKNN, config, log), session)
    assert row == pytest.approx(expected, rel=1e-5)


def test_a_setting_of_training_has_the_same_name() -> None:
    settings = {"decay": "linear", "seed": "3"}
    model, training = split_settings(settings, VSKNNConfig(), Settings())
    assert model.decay == "linear"
    assert (training.decay, training.seed) == (Settings().decay, 3)
