"""The search in 8 bits gives exactly what scoring every item gives."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.recommend.search import ExactSearch

pytest.importorskip("onnxruntime")


def agrees(search: ExactSearch, vectors: torch.Tensor, sessions: torch.Tensor, k: int) -> None:
    scores = sessions @ vectors.T
    found = search.best(sessions.numpy(), [k] * len(sessions))
    values, columns = (torch.from_numpy(np.stack(part)) for part in zip(*found, strict=True))
    expected = scores.topk(k).values
    assert torch.allclose(values, expected, rtol=1e-5, atol=1e-5 * float(scores.abs().max()))
    # Equal scores may change places, so each column is asked for its own score.
    assert torch.allclose(scores.gather(1, columns), values, rtol=1e-5, atol=1e-5 * float(scores.abs().max()))
    assert all(len(set(row)) == k for row in columns.tolist())


@given(st.integers(0, 2**31), st.sampled_from([1, 5, 20]), st.sampled_from([0.0, 1.0, 4.0]), st.sampled_from([1, 3, 9]))
def test_it_is_exact(seed: int, k: int, spread: float, sessions: int) -> None:
    """Vectors of like and of very unlike lengths."""
    torch.manual_seed(seed)
    vectors = torch.randn(5000, 16) * (spread * torch.rand(5000, 1)).exp()
    agrees(
        ExactSearch(vectors.numpy()),
        vectors,
        torch.randn(sessions, 16) * 10 ** torch.empty(sessions, 1).uniform_(-3, 3),
        k,
    )


def test_each_session_has_its_own_number_of_items() -> None:
    torch.manual_seed(0)
    vectors, sessions = torch.randn(9000, 16), torch.randn(3, 16)
    found = ExactSearch(vectors.numpy()).best(sessions.numpy(), [1, 30, 7])
    for session, k, (values, columns) in zip(sessions, (1, 30, 7), found, strict=True):
        expected = (vectors @ session).topk(k)
        assert columns.tolist() == expected.indices.tolist()
        assert values.tolist() == pytest.approx(expected.values.tolist(), rel=1e-5)


def test_where_rounding_can_not_tell_the_session_is_scored_in_full() -> None:
    torch.manual_seed(0)
    vectors = 1 + 1e-4 * torch.randn(5000, 16)  # nearer to each other than a step
    search = ExactSearch(vectors.numpy())
    agrees(search, vectors, torch.randn(3, 16), 20)
    assert search.in_full == 3


def test_it_seldom_has_to() -> None:
    torch.manual_seed(0)
    vectors = torch.empty(20_000, 100).uniform_(-0.1, 0.1)
    search = ExactSearch(vectors.numpy())
    agrees(search, vectors, torch.randn(50, 100), 20)
    assert search.in_full == 0


@pytest.mark.parametrize("items", [1, 40, 3000])
def test_few_items_zeros_and_what_is_no_number(items: int) -> None:
    torch.manual_seed(1)
    vectors = torch.randn(items, 8)
    vectors[0] = 0
    agrees(ExactSearch(vectors.numpy()), vectors, torch.cat([torch.randn(2, 8), torch.zeros(1, 8)]), min(3, items))
    vectors[items - 1] = np.nan
    assert ExactSearch(vectors.numpy()).product is None
