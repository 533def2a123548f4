"""STAN against loops over sets."""

from dataclasses import replace
from math import exp, sqrt

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
    candidates = [
        (age, held)
        for age, held in enumerate(reversed(log))
        if set(held) & set(session)
    ]
    similar = []
    for age, held in candidates[: config.sample_size]:
        product = sum(
            exp(-backward[item] / config.lambda1) for item in set(held) & set(session)
        )
        similarity = (
            product
            / sqrt(len(session) * len(set(held)))
            * exp(-age / len(log) / config.lambda2)
        )
        similar.append((similarity, held))
    similar.sort(key=lambda pair: -pair[0])
    # Where two are all but equal at the cut, rounding decides.
    assume(
        len(similar) <= config.k
        or similar[config.k - 1][0] > 1.0001 * similar[config.k][0]
    )
    found: dict[int, float] = {}
    for similarity, held in similar[: config.k]:
        latest = min(set(held) & set(session), key=lambda item: backward[item])
        position = {
            item: place for place, item in enumerate(held)
        }  # of the latest click
        for item in set(held):
            near = exp(-abs(position[item] - position[latest]) / config.lambda3)
            found[item] = found.get(item, 0) + similarity * near
    return with_rest(found, log)


def test_by_hand() -> None:
    """5 then 2: newest first, [4, 5] shares 5; [2, 3, 5, 2] both, 2 last at place 3; [1, 2] shares
    2 at place 1."""
    [found] = scores(fitted(STAN, PLAIN, LOG, items=5), [5, 2])
    second = exp(-1) / sqrt(2 * 2) * exp(-(1 / 4) / 0.5)
    third = (1 + exp(-1)) / sqrt(2 * 3) * exp(-(2 / 4) / 0.5)
    oldest = 1 / sqrt(2 * 2) * exp(-(3 / 4) / 0.5)
    assert found == pytest.approx([
        oldest * exp(-1 / 2), oldest + third, third * exp(-2 / 2), second * exp(-1 / 2), second + third * exp(-1 / 2),
    ])  # fmt: skip


def test_newer_sessions_are_nearer() -> None:
    model = fitted(STAN, replace(PLAIN, k=1), [[1, 2], [1, 3], [4, 5]], items=5)
    [found] = scores(model, [1])
    assert found[2] > 0 > found[1]


def test_the_sample_is_the_newest() -> None:
    """The older session is like this one, the newer shares one item: a sample of one never sees the
    older."""
    log = [[1, 2, 3], [1, 4]]
    seen = scores(fitted(STAN, replace(PLAIN, sample_size=1), log, items=4), [1, 2])[0]
    assert [score > 0 for score in seen] == [True, False, False, True]


@given(
    logs,
    sessions,
    st.sampled_from([0.5, 3.0]),
    st.sampled_from([0.3, 2.0]),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_any_log_agrees_with_the_equations(
    log: list[list[int]],
    session: list[int],
    lambda1: float,
    lambda2: float,
    k: int,
    sample_size: int,
) -> None:
    config = STANConfig(k, sample_size, lambda1, lambda2, lambda3=1.5)
    expected = slowly(log, session, config)
    assert scores(fitted(STAN, config, log), session)[0] == pytest.approx(
        expected, rel=1e-5
    )
