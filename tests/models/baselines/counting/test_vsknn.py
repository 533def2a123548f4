"""VSKNN against loops over sets."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
    candidates = [held for held in reversed(log) if set(held) & set(session)][
        : config.sample_size
    ]
    similar = []
    for held in candidates:
        shared = set(held) & set(session)
        similar.append(
            (
                sum(
                    weight(config.weighting, backward[item], len(session))
                    for item in shared
                ),
                held,
            )
        )
    similar.sort(key=lambda pair: -pair[0])
    # Which of two equal ones is nearer depends on the order of sums in the last digit.
    assume(
        len(similar) <= config.k
        or similar[config.k - 1][0] > 1.0001 * similar[config.k][0]
    )
    found: dict[int, float] = {}
    for similarity, held in similar[: config.k]:
        latest = min(backward[item] for item in set(held) & set(session))
        for item in set(held):
            rare = math.log(len(log) / sum(item in other for other in log))
            value = (
                similarity
                * weight(config.decay, latest, len(session))
                * (1 + config.idf * rare)
            )
            found[item] = found.get(item, 0) + value
    return with_rest(found, log)


def test_by_hand() -> None:
    """1 then 2: 2 weighs 1, 1 weighs 1/2. [1, 3] gives 1/2 * 1/2, [2, 3, 2] gives 1, [1, 2] gives
    3/2."""
    [found] = scores(fitted(VSKNN, PLAIN, LOG, items=5), [1, 2])
    assert found[:3] == pytest.approx([1 / 4 + 3 / 2, 1 + 3 / 2, 1 / 4 + 1])
    assert found[3:] == pytest.approx(
        [0 / 3 - 1, 0 / 3 - 1]
    )  # clicked once each; 1 and 3 twice, 2 three times


def test_rare_items_are_lifted_by_hand() -> None:
    [found] = scores(fitted(VSKNN, replace(PLAIN, idf=2.0), LOG, items=5), [4])
    assert found[4] == pytest.approx(1 + 2 * math.log(4 / 1))


def test_the_sample_is_the_newest_and_of_equals_the_newest_are_nearest() -> None:
    """Two sessions hold 1; the newer is [1, 3]."""
    for config in (replace(PLAIN, sample_size=1), replace(PLAIN, k=1)):
        [found] = scores(fitted(VSKNN, config, LOG, items=5), [1])
        assert [score > 0 for score in found] == [True, False, True, False, False]


@given(
    logs,
    sessions,
    st.sampled_from([*WEIGHTS]),
    st.sampled_from([*WEIGHTS]),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_any_log_agrees_with_the_equations(
    log: list[list[int]],
    session: list[int],
    weighting: str,
    decay: str,
    k: int,
    sample_size: int,
) -> None:
    config = VSKNNConfig(k, sample_size, weighting, decay, idf=1.5)
    assert scores(fitted(VSKNN, config, log), session)[0] == pytest.approx(
        slowly(log, session, config), rel=1e-5
    )


def test_a_setting_of_training_has_the_same_name() -> None:
    own, training = split_settings(
        {"decay": "linear", "seed": "3"}, VSKNNConfig(), Settings()
    )
    assert (own.decay, training.decay, training.seed) == ("linear", Settings().decay, 3)
