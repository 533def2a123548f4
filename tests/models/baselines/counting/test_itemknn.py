"""Item-KNN against plain counting."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st

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
    counts = {item: sum(item in past for past in log) for item in range(1, ITEMS + 1)}
    neighbours: dict[int, dict[int, float]] = {}
    for item in counts:
        alike = {}
        for other in counts:
            together = sum(item in past and other in past for past in log)
            if (other != item or config.itself) and together:
                norm = (counts[item] + config.regularization) ** config.alpha
                norm *= (counts[other] + config.regularization) ** (1 - config.alpha)
                alike[other] = together / norm
        best = sorted(alike, key=lambda other: (-round(alike[other], 6), other))
        neighbours[item] = {other: alike[other] for other in best[: config.neighbours]}
    return neighbours


def test_by_hand() -> None:
    of_1, of_3 = scores(fitted(ItemKNN, COSINE, LOG, items=5), [4, 1], [3])
    # The rest: 1 four clicks, 2, 3 and 4 two, 5 none: places 2 1 1 1 0 of 3.
    expected = [2 / 3 - 1, 2 / (3 * 2) ** 0.5, 1 / (3 * 2) ** 0.5, 1 / 3 - 1, 0 - 1]
    assert of_1 == pytest.approx(expected)
    expected = [1 / (2 * 3) ** 0.5, 1 / (2 * 2) ** 0.5, 1 / 3 - 1, 1 / 3 - 1, 0 - 1]
    assert of_3 == pytest.approx(expected)


def test_all_items_of_the_session_add_up() -> None:
    model = fitted(ItemKNN, replace(COSINE, all_items=True), LOG, items=5)
    near = torch.tensor(scores(model, [1, 3], [1], [3])).clamp(min=0)
    assert torch.allclose(near[0], near[1] + near[2])


def test_an_unknown_last_click_gives_way_to_the_one_before() -> None:
    model = fitted(ItemKNN, COSINE, LOG, items=5)
    assert scores(model, [3, 1, 77]) == scores(model, [1])


CONFIGS = st.builds(
    ItemKNNConfig,
    neighbours=st.integers(1, 9),
    regularization=st.sampled_from([0, 2.5]),
    alpha=st.sampled_from([0.5, 0.75]),
    itself=st.booleans(),
)


@given(logs, sessions, CONFIGS, st.integers(1, 40))
def test_any_log_agrees_with_plain_counting(
    log: list[list[int]], session: list[int], config: ItemKNNConfig, at_once: int
) -> None:
    with patch.object(itemknn, "PAIRS_AT_ONCE", at_once):  # in blocks of any size
        model = fitted(ItemKNN, config, log)
    expected = with_rest(similarities(log, config)[session[-1]], log)
    assert scores(model, session)[0] == pytest.approx(expected)
