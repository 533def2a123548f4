"""`top`, the k best of scores, is what sorting all scores gives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.evaluation.metrics import TOP_BLOCK, top


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 3 * TOP_BLOCK), st.integers(0, 99), st.booleans())
def test_top_is_the_same_as_topk(rows: int, k: int, more: int, seed: int, ties: bool) -> None:
    columns = 2 * k * TOP_BLOCK + more  # enough for blocks
    scores = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    scores = scores.round() if ties else scores
    values, found = top(scores, k)
    assert torch.equal(values, scores.topk(k).values)
    assert torch.equal(scores.gather(1, found), values)
    assert all(len(set(row)) == k for row in found.tolist())


@pytest.mark.parametrize("place", [0, TOP_BLOCK - 1, 5 * TOP_BLOCK, 9 * TOP_BLOCK + 6])
def test_top_finds_the_best_in_any_block(place: int) -> None:
    scores = torch.full((1, 9 * TOP_BLOCK + 7), -torch.inf)
    scores[0, place] = 1
    values, found = top(scores, 2)
    assert (values[0, 0], found[0, 0], values[0, 1]) == (1, place, -torch.inf)


def test_top_of_an_expanded_row() -> None:
    scores = torch.randn(40 * TOP_BLOCK).expand(3, -1)  # one row in memory
    assert torch.equal(top(scores, 5)[1], scores.topk(5).indices)
