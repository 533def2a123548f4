"""The analysis of schemes with known answers: the paper's, learned tables, and users' own."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from posrec.encodings.awareness import PositionPair, analyse, examined_names
from posrec.encodings.schemes import LEARNED, make_encoding

DUAL = make_encoding("dpe", d=8, max_length=30).double()
ALL = tuple(range(8))
FIRST = (0, 1, 2, 3)
LAST = (4, 5, 6, 7)
EMPTY = ()
# name: A*, B*, does Definition 3.1 hold, 3.2, all (position, length) unique, unique within a length
EXPECTED = {
    "none": (ALL, ALL, False, False, False, False),
    "spe": (ALL, EMPTY, True, False, False, True),
    "rspe": (EMPTY, ALL, False, True, False, True),
    "dpe": (FIRST, LAST, True, True, True, True),
    "aspe": (EMPTY, EMPTY, False, False, True, True),
    "2dspe": (FIRST, EMPTY, True, False, True, True),
    "lpe": (ALL, EMPTY, True, False, False, True),
    "lrpe": (EMPTY, ALL, False, True, False, True),
    "ldpe": (FIRST, LAST, True, True, True, True),
    "alpe": (EMPTY, EMPTY, False, False, True, True),
    "2dlpe": (FIRST, EMPTY, True, False, True, True),
    "rpe": (ALL, ALL, False, False, False, False),
    "sum": (EMPTY, EMPTY, False, False, False, False),
}


@pytest.mark.parametrize("name", examined_names())
def test_what_the_definitions_give_for_each_scheme(name: str) -> None:
    analysis = analyse(name, max_length=12, d=8)
    forward = analysis.forward
    backward = analysis.backward
    assert EXPECTED[name] == (
        forward.dimensions,
        backward.dimensions,
        forward.holds,
        backward.holds,
        analysis.unique,
        analysis.unique_within_length,
    )
    assert forward.holds_by_pair == forward.holds
    assert backward.holds_by_pair == backward.holds


@pytest.mark.parametrize("name", EXPECTED)
def test_each_answer_comes_with_true_evidence(name: str) -> None:
    """Counterexamples are checked against the scheme itself, not against the analysis' table."""
    analysis = analyse(name, max_length=12, d=8)
    for awareness, counted in (
        (analysis.forward, positions),
        (analysis.backward, reverse_positions),
    ):
        aware = set(awareness.dimensions)
        shown = set().union(*(clash.dimensions for clash in awareness.clashes))
        assert shown | aware == set(range(8))
        assert not shown & aware
        for clash in awareness.clashes:
            first, second = counted(clash)
            assert first == second
            assert all(a != b for a, b in zip(*clash.values, strict=True))
            if name not in (*LEARNED, "sum"):
                check_values(name, clash)
        if awareness.collision is not None:
            first, second = counted(awareness.collision)
            assert first != second
            assert awareness.collision.dimensions == awareness.dimensions
            values, others = awareness.collision.values
            assert values == pytest.approx(others, rel=1e-12, abs=1e-12)
        assert awareness.holds == (bool(aware) and awareness.collision is None)


def positions(pair: PositionPair) -> tuple[int, int]:
    return pair.positions


def reverse_positions(pair: PositionPair) -> tuple[int, int]:
    first, second = pair.positions
    return pair.lengths[0] - first, pair.lengths[1] - second


def check_values(name: str, pair: PositionPair) -> None:
    encoding = make_encoding(name, d=8, max_length=12).double()
    for position, length, values in zip(
        pair.positions, pair.lengths, pair.values, strict=True
    ):
        forward = torch.arange(length).unsqueeze(0)
        encoded = encoding(forward, length - 1 - forward, torch.tensor([length]))
        again = encoded[0, position, list(pair.dimensions)].tolist()
        # Not to the bit: a sine computed among others may differ from one computed alone in its
        # last digit.
        assert again == pytest.approx(values, rel=1e-12, abs=1e-12)


def test_the_counterexample_for_spe_is_that_of_the_paper() -> None:
    """Theorem 3.4: the last item of length 1 is [0, 1, 0, 1, ..], that of length 2 is another in
    every dimension."""
    (clash,) = analyse("spe", max_length=12, d=8).backward.clashes
    assert (clash.positions, clash.lengths, clash.dimensions) == ((0, 1), (1, 2), ALL)
    assert clash.values[0] == (0, 1, 0, 1, 0, 1, 0, 1)
    assert clash.values[1][:2] == pytest.approx((math.sin(1), math.cos(1)))


# A sine without its cosine can't be moved by a matrix.
ODD = [("spe", 3), ("spe", 7), ("dpe", 6)]


@pytest.mark.parametrize(
    ("name", "d", "holds"),
    [
        *((name, 8, True) for name in ("spe", "rspe", "dpe", "aspe", "2dspe")),
        *((name, 8, False) for name in ("sum", *LEARNED)),
        *((name, d, False) for name, d in ODD),
    ],
)
def test_which_schemes_are_moved_on_by_one_matrix(
    name: str, d: int, holds: bool
) -> None:
    linear = analyse(name, max_length=30, d=d).linear
    assert linear.holds == holds
    assert not linear.trivial
    assert (linear.residual < 1e-11) if holds else (linear.residual > 1e-7)


@pytest.mark.parametrize(
    ("name", "trivial"),
    [("lpe", True), ("none", True), ("spe", False), ("ldpe", False)],
)
def test_a_fit_that_proves_nothing_is_called_trivial(name: str, trivial: bool) -> None:
    """Ten random rows of 40 columns can be mapped onto anything at all."""
    assert analyse(name, max_length=20, d=40).linear.trivial == trivial


def test_past_the_table_a_learned_scheme_is_no_longer_aware() -> None:
    torch.manual_seed(0)
    table_of_10 = make_encoding("ldpe", d=8, max_length=10)
    assert analyse(table_of_10, max_length=10, d=8).forward.holds
    longer = analyse(table_of_10, max_length=11, d=8).forward
    assert not longer.holds
    assert longer.collision is not None
    assert sorted(longer.collision.positions) == [9, 10]


def test_a_random_table_is_the_same_one_each_time() -> None:
    torch.manual_seed(1)
    first = analyse("ldpe", max_length=9, d=8)
    torch.manual_seed(2)
    assert analyse("ldpe", max_length=9, d=8) == first


def test_a_module_is_examined_as_it_would_serve() -> None:
    class Dropping(torch.nn.Module):
        def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
            encoded = DUAL(forward, backward, length)
            return torch.nn.functional.dropout(encoded, 0.5, self.training)

    assert analyse(Dropping(), max_length=9, d=8).forward.dimensions == FIRST


def test_the_users_module_is_left_as_it_was() -> None:
    module = make_encoding("lpe", d=4, max_length=6)
    analyse(module, max_length=6, d=4)
    assert module.get_parameter("table").dtype == torch.float32
    assert module.training


def test_a_scheme_in_float32_is_judged_by_the_rounding_of_float32() -> None:
    def single(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        values = DUAL(forward, backward, length).float()
        return values + (1e-7 * (length[:, None, None] % 2)).float()

    analysis = analyse(single, max_length=20, d=8)
    assert analysis.forward.dimensions == FIRST
    assert analysis.backward.dimensions == LAST


def test_bad_sizes_and_values_are_refused() -> None:
    with pytest.raises(ValueError, match="max_length=1"):
        analyse("spe", max_length=1, d=4)
    with pytest.raises(ValueError, match="not finite"):
        analyse(lambda f, b, n: torch.full((*f.shape, 2), torch.nan), 3, 2)


@given(
    max_length=st.integers(2, 12),
    d=st.integers(2, 9),
    forward=st.lists(st.booleans(), min_size=9, max_size=9),
    backward=st.lists(st.booleans(), min_size=9, max_size=9),
)
@settings(max_examples=40, deadline=None)
def test_dimensions_are_sorted_by_what_they_depend_on(
    max_length: int, d: int, forward: list[bool], backward: list[bool]
) -> None:
    """Each dimension depends on the position, on the reverse position, on both (mixed), or on
    nothing."""
    uses_forward = torch.tensor(forward[:d]).double()
    uses_backward = math.pi * torch.tensor(backward[:d]).double()

    def mixed(f: Tensor, b: Tensor, length: Tensor) -> Tensor:
        return f.unsqueeze(-1) * uses_forward + b.unsqueeze(-1) * uses_backward

    analysis = analyse(mixed, max_length, d)
    assert analysis.forward.dimensions == tuple(k for k in range(d) if not backward[k])
    assert analysis.backward.dimensions == tuple(k for k in range(d) if not forward[k])
    uses = list(zip(forward[:d], backward[:d], strict=True))
    assert analysis.forward.holds == ((True, False) in uses)
    assert analysis.backward.holds == ((False, True) in uses)
    if analysis.forward.holds and analysis.backward.holds:
        assert analysis.unique
