"""The search in 8 bits gives exactly what sorting all scores gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from posrec.recommend.rank import rounded_items
from posrec.recommend.rank.exact_search import CACHED, ExactSearch
from posrec.recommend.rank.rounded_items import is_signed

pytest.importorskip("onnxruntime")


def agrees(
    search: ExactSearch, vectors: torch.Tensor, sessions: torch.Tensor, k: int
) -> None:
    products = sessions @ vectors.T
    close = 1e-5 * float(products.abs().max())
    masks = [None] * len(sessions)
    found = search.search(sessions.numpy(), [k] * len(sessions), masks)
    for row, best in zip(products, found.best, strict=True):
        scores = torch.from_numpy(best.scores)
        assert torch.allclose(scores, row.topk(k).values, rtol=1e-5, atol=close)
        # Equal scores may change places, so the score of each column is compared.
        assert torch.allclose(row[best.columns], scores, rtol=1e-5, atol=close)
        assert len(set(best.columns.tolist())) == k


@given(
    st.integers(0, 2**31),
    st.sampled_from([1, 5, 20]),
    st.sampled_from([0.0, 1.0, 4.0]),
    st.sampled_from([1, 3, 9]),
)
def test_the_search_is_exact(seed: int, k: int, spread: float, sessions: int) -> None:
    """Vectors of similar and of very different lengths."""
    torch.manual_seed(seed)
    vectors = torch.randn(5000, 16) * (spread * torch.rand(5000, 1)).exp()
    lengths = 10 ** torch.empty(sessions, 1).uniform_(-3, 3)
    session_vectors = torch.randn(sessions, 16) * lengths
    agrees(ExactSearch(vectors.numpy()), vectors, session_vectors, k)


def test_each_session_has_its_own_number_of_items() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(9000, 16)
    sessions = torch.randn(3, 16)
    counts = [1, 30, 7]
    search = ExactSearch(vectors.numpy())
    found = search.search(sessions.numpy(), counts, [None] * 3)
    for session, k, best in zip(sessions, counts, found.best, strict=True):
        scores, columns = (vectors @ session).topk(k)
        assert best.columns.tolist() == columns.tolist()
        assert best.scores.tolist() == pytest.approx(scores.tolist(), rel=1e-5)


@pytest.mark.parametrize("is_coarse", [True, False])
def test_sessions_are_scored_in_full_only_where_rounding_is_too_coarse(
    is_coarse: bool,
) -> None:
    torch.manual_seed(0)
    vectors = torch.empty(20_000, 100).uniform_(-0.1, 0.1)
    if is_coarse:
        vectors = 1 + 1e-3 * vectors  # nearer to each other than a step
    search = ExactSearch(vectors.numpy())
    agrees(search, vectors, torch.randn(20, 100), 20)
    assert search.in_full == (20 if is_coarse else 0)


def by_rounding(
    vectors: torch.Tensor, sessions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products in double precision, and the same of vectors that are rounded to 8 bits, an item by
    the largest number of all items and a session by its own."""
    vectors, sessions = vectors.double(), sessions.double()
    step = vectors.abs().max() / 127
    steps = sessions.abs().amax(1, keepdim=True) / 127
    products = (sessions / steps).round() @ (vectors / step).round().T
    return sessions @ vectors.T, products * step * steps


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("items", [9000, 9001, 9024])
def test_bounds_and_log_z_are_those_of_rounded_vectors(
    signed: bool, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block is filled up; with zeros, which must not be found or counted."""
    if signed and not is_signed():
        pytest.skip("products of unsigned and signed bytes overflow on this processor")
    monkeypatch.setattr(rounded_items, "is_signed", lambda: signed)
    torch.manual_seed(0)
    vectors = torch.randn(items, 16)
    sessions = torch.randn(4, 16)
    sessions[0] = -5  # all products may be far below 0
    exact, rounded = by_rounding(vectors.abs(), sessions)
    search = ExactSearch(vectors.abs().numpy(), with_log_sums=True)
    assert search.rounded is not None
    found = search.rounded.best(sessions.numpy(), 50, [None] * 4)
    best = rounded.topk(50)
    columns = torch.from_numpy(found.columns)
    assert columns.sort(1).values.tolist() == best.indices.sort(1).values.tolist()
    products = exact.gather(1, columns)
    np.testing.assert_allclose(found.scores, products, rtol=1e-4, atol=1e-5)
    assert (np.diff(found.scores) <= 0).all()
    is_found = torch.zeros_like(exact, dtype=torch.bool).scatter(1, columns, True)
    best_of_others = exact.masked_fill(is_found, -torch.inf).amax(1)
    assert (best_of_others.numpy() < found.bounds).all()
    mixed = torch.where(is_found, exact, rounded)
    assert found.log_sums is not None
    np.testing.assert_allclose(found.log_sums, mixed.logsumexp(1), rtol=1e-4, atol=1e-4)


def test_masks_leave_items_out_but_not_out_of_log_z() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(9001, 16)
    sessions = torch.randn(4, 16)
    products = sessions @ vectors.T
    some = np.zeros(9001, bool)
    some[::3] = True
    few = np.zeros(9001, bool)
    few[[5, 77]] = True
    search = ExactSearch(vectors.numpy(), with_log_sums=True)
    found = search.search(sessions.numpy(), [20, 20, 2, 20], [some, None, few, some])
    assert search.in_full == 0
    for row, best in enumerate(found.best):
        mask = torch.from_numpy({1: np.ones(9001, bool), 2: few}.get(row, some))
        expected = products[row].masked_fill(~mask, -torch.inf).topk(len(best.scores))
        assert best.columns.tolist() == expected.indices.tolist()
    assert found.log_sums is not None
    np.testing.assert_allclose(found.log_sums, products.logsumexp(1), atol=0.05)


def test_log_z_of_very_long_vectors_is_computed_in_full() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(9000, 16)
    sessions = 100 * torch.randn(2, 16)
    search = ExactSearch(vectors.numpy(), with_log_sums=True)
    found = search.search(sessions.numpy(), [20, 20], [None, None])
    assert search.in_full == 2
    assert found.log_sums is not None
    expected = (sessions @ vectors.T).logsumexp(1)
    assert found.log_sums.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_a_large_catalogue_is_searched_by_several_threads() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(1 + CACHED // 32, 32)
    search = ExactSearch(vectors.numpy(), cores=3)
    assert search.rounded is not None
    assert search.rounded.session.get_session_options().intra_op_num_threads == 3
    agrees(search, vectors, torch.randn(2, 32), 20)
    assert search.in_full == 0


def test_a_session_whose_scores_are_all_equal_is_scored_in_full() -> None:
    search = ExactSearch(torch.randn(9000, 16).numpy())
    sessions = np.stack([np.zeros(16, np.float32), np.ones(16, np.float32)])
    equal, other = search.search(sessions, [20, 20], [None, None]).best
    assert search.in_full == 1
    assert (equal.scores == 0).all()
    for best in (equal, other):
        assert len(set(best.columns.tolist())) == 20


@pytest.mark.parametrize("items", [1, 40, 3000])
def test_few_items_zeros_and_nan(items: int) -> None:
    torch.manual_seed(1)
    vectors = torch.randn(items, 8)
    vectors[0] = 0
    sessions = torch.cat([torch.randn(2, 8), torch.zeros(1, 8)])
    agrees(ExactSearch(vectors.numpy()), vectors, sessions, min(3, items))
    vectors[items - 1] = np.nan
    assert ExactSearch(vectors.numpy()).rounded is None
