"""How many rows a captured step must have room for."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.training.step import ROWS_APART, capacity_for, most_clicks


def test_the_fullest_batch_decides() -> None:
    assert most_clicks(torch.tensor([1, 2, 9, 1, 3, 4]), batch_size=2) == 10
    assert most_clicks(torch.tensor([1, 2, 9, 1, 3, 4]), batch_size=3) == 12


@given(st.integers(1, 100_000))
def test_there_is_room_for_a_little_more(clicks: int) -> None:
    capacity = capacity_for(clicks)
    assert capacity % ROWS_APART == 0
    assert 1.1 * clicks <= capacity < 1.1 * clicks + ROWS_APART + 1
