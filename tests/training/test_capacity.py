"""How many rows a captured step must have room for."""

import torch

from posrec.training.step import ROWS_APART, needed_capacity


def test_the_fullest_batch_decides() -> None:
    lengths = torch.tensor([1, 2, ROWS_APART, 1, 3, 4])
    assert needed_capacity(lengths, batch_size=2) == 2 * ROWS_APART
    assert needed_capacity(torch.tensor([1, 1, 2, 2]), batch_size=2) == ROWS_APART
