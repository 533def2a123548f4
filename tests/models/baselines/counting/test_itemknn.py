"""Item-KNN against plain counting."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.models.baselines.counting import itemknn
from posrec.models.baselines.counting.itemknn import ItemKNN, ItemKNNConfig
from tests.models.baselines.counting.small_logs import (
    ITEMS,
    fitted,
    logs,
    scores,
    sessions,
    with_rest,
)

# Sessions with 1: 3, with 2: 2, with 3: 2; 1 and 2 meet in two, 1 and 3 in one, 2 and 3 in one; 4
# is alone.
LOG = [[1, 2, 1], [2, 1, 3], [1], [4, 4], [3]]
COSINE = ItemKNNConfig(regularization=0, alpha=0.5)


def similarities(
    log: list[list[int]], config: ItemKNNConfig
) -> dict[int, dict[int, float]]:
    """For every item its neighbours, from sets and loops."""
    sets = [set(session) for session in log]
    holding = {item: sum(item in one for one in sets) for item in range(1, ITEMS + 1)}
    found: dict[int, dict[int, float]] = {}
    for item in holding:
        alike = {}
        for other in holding:
            together = sum(item in one and other in one for one in sets)
            if (other != item or config.itself) and together:
                one = holding[item] + config.regularization
                two = holding[other] + config.regularization
                alike[other] = together / (
                    one**config.alpha * two ** (1 - config.alpha)
                )
        best = sorted(alike, key=lambda other: (-round(alike[other], 6), other))
        found[item] = {other: alike[other] for other in best[: config.neighbours]}
    return found


def test_by_hand() -> None:
    found = scores(fitted(ItemKNN, COSINE, LOG, items=5), [4, 1], [3])
    # The rest: 1 four clicks, 2, 3 and 4 two, 5 none: places 2 1 1 1 0 of 3.
    assert found[0] == pytest.approx(
        [2 / 3 - 1, 2 / (3 * 2) ** 0.5, 1 / (3 * 2) ** 0.5, 1 / 3 - 1, 0 - 1]
    )
    assert found[1] == pytest.approx(
        [1 / (2 * 3) ** 0.5, 1 / (2 * 2) ** 0.5, 1 / 3 - 1, 1 / 3 - 1, 0 - 1]
    )


def test_regularisation_and_alpha_by_hand() -> None:
    [found] = scores(
        fitted(ItemKNN, ItemKNNConfig(regularization=10, alpha=0.75), LOG, items=5), [1]
    )
    assert found[1] == pytest.approx(2 / (13**0.75 * 12**0.25))


def test_only_the_nearest_are_kept() -> None:
    [found] = scores(fitted(ItemKNN, replace(COSINE, neighbours=1), LOG, items=5), [1])
    assert [score > 0 for score in found] == [False, True, False, False, False]


def test_all_items_of_the_session_add_up() -> None:
    model = fitted(ItemKNN, replace(COSINE, all_items=True), LOG, items=5)
    both, one, other = (
        torch.tensor(row).clamp(min=0) for row in scores(model, [1, 3], [1], [3])
    )
    assert torch.allclose(both, one + other)


def test_an_unknown_last_click_gives_way_to_the_one_before() -> None:
    model = fitted(ItemKNN, COSINE, LOG, items=5)
    assert scores(model, [3, 1, 77]) == scores(model, [1])


@given(
    logs, sessions, st.sampled_from([0, 2.5]), st.sampled_from([0.5, 0.75]), st.integers(1, 9), st.booleans(),
    st.integers(1, 40),
)  # fmt: skip
def test_any_log_agrees_with_plain_counting(
    log: list[list[int]],
    session: list[int],
    regularization: float,
    alpha: float,
    neighbours: int,
    itself: bool,
    at_once: int,
) -> None:
    config = ItemKNNConfig(neighbours, regularization, alpha, itself)
    with patch.object(itemknn, "PAIRS_AT_ONCE", at_once):  # in blocks of any size
        model = fitted(ItemKNN, config, log)
    assert scores(model, session)[0] == pytest.approx(
        with_rest(similarities(log, config)[session[-1]], log)
    )
