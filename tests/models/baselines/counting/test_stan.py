"""STAN against loops over sets."""

from math import exp, sqrt

import pytest
from hypothesis import assume, given, strategies as st

from posrec.models.baselines.counting.stan import STAN, STANConfig
from tests.models.baselines.counting.small_logs import (
    fitted,
    logs,
    scores,
    sessions,
    with_rest,
)

LOG = [[1, 2], [2, 3, 5, 2], [4, 5], [1, 3]]
PLAIN = STANConfig(lambda1=1.0, lambda2=0.5, lambda3=2.0)


def slowly(log: list[list[int]], session: list[int], config: STANConfig) -> list[float]:
    backward = {item: session[::-1].index(item) for item in session}
    similar: list[tuple[float, list[int]]] = []
    for age, held in enumerate(reversed(log)):
        shared = set(held) & set(session)
        if shared and len(similar) < config.sample_size:
            product = sum(exp(-backward[item] / config.lambda1) for item in shared)
            similarity = product / sqrt(len(session) * len(set(held)))
            similarity *= exp(-age / len(log) / config.lambda2)
            similar.append((similarity, held))
    similar.sort(key=lambda pair: -pair[0])
    # Where two are all but equal at the cut, rounding decides.
    assume(
        len(similar) <= config.k
        or similar[config.k - 1][0] > 1.0001 * similar[config.k][0]
    )
    near: dict[int, float] = {}
    for similarity, held in similar[: config.k]:
        latest = min(set(held) & set(session), key=lambda item: backward[item])
        positions = {item: position for position, item in enumerate(held)}
        for item in set(held):
            distance = abs(positions[item] - positions[latest])
            score = similarity * exp(-distance / config.lambda3)
            near[item] = near.get(item, 0) + score
    return with_rest(near, log)


def test_by_hand() -> None:
    """5 then 2: newest first, [4, 5] shares 5; [2, 3, 5, 2] both, 2 last at place 3; [1, 2] shares
    2 at place 1."""
    [row] = scores(fitted(STAN, PLAIN, LOG, items=5), [5, 2])
    second = exp(-1) / sqrt(2 * 2) * exp(-(1 / 4) / 0.5)
    third = (1 + exp(-1)) / sqrt(2 * 3) * exp(-(2 / 4) / 0.5)
    oldest = 1 / sqrt(2 * 2) * exp(-(3 / 4) / 0.5)
    expected = [
        oldest * exp(-1 / 2),
        oldest + third,
        third * exp(-2 / 2),
        second * exp(-1 / 2),
        second + third * exp(-1 / 2),
    ]
    assert row == pytest.approx(expected)


CONFIGS = st.builds(
    STANConfig,
    k=st.integers(1, 9),
    sample_size=st.integers(1, 9),
    lambda1=st.sampled_from([0.5, 3.0]),
    lambda2=st.sampled_from([0.3, 2.0]),
    lambda3=st.just(1.5),
)


@given(logs, sessions, CONFIGS)
def test_any_log_agrees_with_the_equations(
    log: list[list[int]], session: list[int], config: STANConfig
) -> None:
    expected = slowly(log, session, config)
    [row] = scores(fitted(STAN, config, log), session)
    assert row == pytest.approx(expected, rel=1e-5)
