"""Ranking with a term for the session's own items: by its definition, and the search against all
scores."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import SAMPLE, FaissSearch, IndexSettings, build
from posrec.recommend.rank.torch_model import as_arrays
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run
from tests.fixtures import by_all_scores, run_of
from tests.helpers import assert_alike, items_of
from tests.nn.test_own_items import ITEMS as SMALL, Session, mixture, mixtures

pytest.importorskip("onnxruntime")

ITEMS = 4000  # enough for a search in 8 bits
IDS = [f"i{number}" for number in range(1, ITEMS + 1)]
FEW = ["i1", "i2", "i3", "i4", "i5", "i3999", "i4000"]


def random_run() -> Run:
    torch.manual_seed(5)
    model = PosRecPlus(ITEMS, PosRecPlusConfig(d=16, max_length=6)).eval()
    with torch.no_grad():
        # Larger than at the start of training, so that items and sessions differ more.
        for weight in (model.embedding.weight, *model.repeat.parameters()):
            weight.mul_(3)
    return run_of(model, IDS, "posrec-plus")


RUN = random_run()
BY_SCORES = by_all_scores(RUN)
BY_SEARCH = Recommender(RUN, "cpu")


@mixtures
def test_terms_are_the_chances_of_the_definition(
    products: list[float], session: Session, g_repeat: float
) -> None:
    chances, own = mixture(products, session, g_repeat)
    every = np.array([products], np.float32)
    arrays = as_arrays(own)
    log_sums = np.logaddexp.reduce(every, axis=1)
    own_products = np.take_along_axis(every, arrays.columns, 1)
    (own_scores,), (added,) = arrays.log_chances(own_products, log_sums)
    log_chances = dict(enumerate(every[0] + added, start=1))
    log_chances |= dict(zip(arrays.items[0].tolist(), own_scores, strict=True))
    computed = [math.exp(log_chances[item]) for item in range(1, SMALL + 1)]
    assert computed == pytest.approx(chances, rel=1e-3)


# log Z.


def exact_log_sums(table: np.ndarray, sessions: np.ndarray) -> np.ndarray:
    """In double precision."""
    products = sessions.astype(np.float64) @ table.astype(np.float64).T
    return np.logaddexp.reduce(products, axis=1)


@given(
    st.integers(0, 2**31),
    st.sampled_from([1, 20]),
    st.sampled_from([0.1, 1.0, 13.0]),
    st.sampled_from([40, 6000]),
)
def test_log_sum_is_within_its_bound(
    seed: int, k: int, scale: float, items: int
) -> None:
    draw = np.random.default_rng(seed)
    table = draw.standard_normal((items, 16)).astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    sessions = draw.standard_normal((3, 16)).astype(np.float32)
    sessions *= scale / np.linalg.norm(sessions, axis=1, keepdims=True)
    search = ExactSearch(table, with_log_sums=True)
    found = search.search(sessions, [k] * 3, [None] * 3)
    bounds = np.full(3, 1e-5)
    if search.rounded is not None:
        # |v·x - v'·x'| <= |v'| |x - x'| + |v - v'| |x|, of vectors rounded to 127 levels
        of_items = 4 * abs(table).max() / 254 * np.linalg.norm(sessions, axis=1)
        of_sessions = 4 * abs(sessions).max(1) / 254 * 1.1
        bounds = of_items + of_sessions + 1e-5
    errors = abs(found.log_sums - exact_log_sums(table, sessions))
    assert (errors <= bounds).all()


def clusters(items: int) -> tuple[np.ndarray, np.ndarray]:
    """Item vectors of length 1 in 200 clusters, and 40 sessions that ask for some of them."""
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((200, 16))[draw.integers(0, 200, items)]
    vectors = centres + 0.4 * draw.standard_normal((items, 16))
    table = vectors.astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return table, 13 * table[draw.integers(0, items, 40)]


def test_faiss_estimates_the_log_sum() -> None:
    """The error of Z is at most five standard errors of the sum over a sample of the items that
    were not found."""
    pytest.importorskip("faiss")
    table, sessions = clusters(5 * SAMPLE)
    index = build(table, sessions, IndexSettings("faiss", lists=64)).index
    search = FaissSearch(table, index, with_log_sums=True)
    log_sums = search.search(sessions, [20] * 40, [None] * 40).log_sums
    assert log_sums is not None
    exact = exact_log_sums(table, sessions)
    for session, log_sum, exact_log_sum in zip(sessions, log_sums, exact, strict=True):
        # Ten for each of the 20 are found.
        others = np.sort(np.exp((table @ session).astype(np.float64)))[:-200]
        error = len(others) * others.std() / math.sqrt(SAMPLE)
        assert abs(math.exp(log_sum) - math.exp(exact_log_sum)) < 5 * error
    again = FaissSearch(table, index, with_log_sums=True)
    same = again.search(sessions, [20] * 40, [None] * 40).log_sums
    assert same is not None
    assert np.array_equal(same, log_sums)


def test_faiss_sums_up_all_items_of_a_small_catalogue_and_where_its_lists_hold_too_few() -> (
    None
):
    pytest.importorskip("faiss")
    for items, k in ((SAMPLE, 20), (3 * SAMPLE, 2000)):
        table, sessions = clusters(items)
        settings = IndexSettings("faiss", lists=128, probes=1)
        index = build(table, sessions, settings).index
        search = FaissSearch(table, index, with_log_sums=True)
        found = search.search(sessions[:3], [k] * 3, [None] * 3)
        exact = exact_log_sums(table, sessions[:3])
        assert found.log_sums == pytest.approx(exact, abs=1e-4)


# The search against all scores.

some_ids = st.lists(st.sampled_from(FEW), max_size=7, unique=True)


@given(
    st.lists(st.lists(st.sampled_from(FEW), min_size=1, max_size=9), min_size=1, max_size=4),
    st.integers(1, 25), st.booleans(), st.none() | some_ids.filter(bool), some_ids,
)  # fmt: skip
def test_both_ways_give_the_same_items_and_scores(
    sessions: list[list[str]],
    k: int,
    exclude_seen: bool,
    allow: list[str] | None,
    deny: list[str],
) -> None:
    rules: Any = {"k": k, "exclude_seen": exclude_seen, "allow": allow, "deny": deny}
    answers = BY_SEARCH.recommend(sessions, **rules)
    # log Z is summed in 8 bits.
    assert_alike(BY_SCORES.recommend(sessions, **rules), answers, within=1e-2)
    for session, answer in zip(sessions, answers, strict=True):
        left = set(IDS if allow is None else allow) - set(deny)
        if exclude_seen:
            left -= set(session)
        assert set(items_of(answer)) <= left
        assert len(answer) == min(k, len(left))
