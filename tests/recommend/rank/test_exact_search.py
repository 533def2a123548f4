"""The search in 8 bits gives exactly what sorting all scores gives."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.recommend.rank.exact_search import CACHED, ExactSearch, is_signed

pytest.importorskip("onnxruntime")


def agrees(
    search: ExactSearch, vectors: torch.Tensor, sessions: torch.Tensor, k: int
) -> None:
    scores = sessions @ vectors.T
    found = [best for best, _ in search.search(sessions.numpy(), [k] * len(sessions))]
    values, columns = (
        torch.from_numpy(np.stack(part)) for part in zip(*found, strict=True)
    )
    expected = scores.topk(k).values
    assert torch.allclose(
        values, expected, rtol=1e-5, atol=1e-5 * float(scores.abs().max())
    )
    # Equal scores may change places, so the score of each column is compared.
    assert torch.allclose(
        scores.gather(1, columns),
        values,
        rtol=1e-5,
        atol=1e-5 * float(scores.abs().max()),
    )
    assert all(len(set(row)) == k for row in columns.tolist())


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
    agrees(
        ExactSearch(vectors.numpy()),
        vectors,
        torch.randn(sessions, 16) * 10 ** torch.empty(sessions, 1).uniform_(-3, 3),
        k,
    )


def test_each_session_has_its_own_number_of_items() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(9000, 16)
    sessions = torch.randn(3, 16)
    found = ExactSearch(vectors.numpy()).search(sessions.numpy(), [1, 30, 7])
    for session, k, ((values, columns), _) in zip(
        sessions, (1, 30, 7), found, strict=True
    ):
        expected = (vectors @ session).topk(k)
        assert columns.tolist() == expected.indices.tolist()
        assert values.tolist() == pytest.approx(expected.values.tolist(), rel=1e-5)


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


@pytest.mark.parametrize("signed", [False, True])
def test_rounded_products_are_those_of_whole_numbers(
    signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if signed and not is_signed(1, 1):
        pytest.skip(
            "the product of unsigned and signed bytes overflows on this processor"
        )
    monkeypatch.setattr(
        "posrec.recommend.rank.exact_search.is_signed", lambda *_: signed
    )
    torch.manual_seed(0)
    vectors = torch.randn(9000, 16)
    sessions = torch.randn(4, 16)
    rounded = ExactSearch(vectors.numpy()).rounded
    assert rounded is not None
    levels = (vectors / rounded.step).round() @ (
        sessions / (sessions.abs().amax(1, keepdim=True) / 127)
    ).round().T
    assert np.array_equal(
        rounded.scores(sessions.numpy())[0][:, :9000], levels.T.numpy()
    )


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
    (one, _), (other, _) = search.search(
        np.stack([np.zeros(16), np.ones(16)]).astype(np.float32), [20, 20]
    )
    assert search.in_full == 1
    assert (one[0] == 0).all()
    assert len(set(one[1].tolist())) == len(set(other[1].tolist())) == 20


@pytest.mark.parametrize("items", [1, 40, 3000])
def test_few_items_zeros_and_nan(items: int) -> None:
    torch.manual_seed(1)
    vectors = torch.randn(items, 8)
    vectors[0] = 0
    agrees(
        ExactSearch(vectors.numpy()),
        vectors,
        torch.cat([torch.randn(2, 8), torch.zeros(1, 8)]),
        min(3, items),
    )
    vectors[items - 1] = np.nan
    assert ExactSearch(vectors.numpy()).rounded is None
