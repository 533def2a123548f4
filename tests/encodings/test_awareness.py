"""The analysis of schemes with known answers: the paper's, learned tables, and users' own."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posrec.encodings.awareness import Analysis, PositionPair, analyse, examined_names
from posrec.encodings.schemes import LEARNED, make_encoding

BASE = {
    name: make_encoding(name, d=8, max_length=30).double()
    for name in ("spe", "rspe", "dpe")
}


# name: A*, B*, does Definition 3.1 hold, 3.2, all (position, length) unique, unique within a length
ALL = tuple(range(8))
FIRST = (0, 1, 2, 3)
LAST = (4, 5, 6, 7)
EMPTY = ()
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
    found = analyse(name, max_length=12, d=8)
    assert EXPECTED[name] == (
        found.forward.dimensions,
        found.backward.dimensions,
        found.forward.holds,
        found.backward.holds,
        found.unique,
        found.unique_within_length,
    )
    assert (found.forward.holds_by_pair, found.backward.holds_by_pair) == EXPECTED[
        name
    ][2:4]


@pytest.mark.parametrize("name", EXPECTED)
def test_each_answer_comes_with_true_evidence(name: str) -> None:
    """Counterexamples are checked against the scheme itself, not against the table of the analysis."""
    found = analyse(name, max_length=12, d=8)
    encoding = (
        None
        if name in (*LEARNED, "sum")
        else make_encoding(name, d=8, max_length=12).double()
    )
    for awareness, places in (
        (found.forward, same_position),
        (found.backward, same_reverse_position),
    ):
        shown = {
            dimension for clash in awareness.clashes for dimension in clash.dimensions
        }
        assert shown | set(awareness.dimensions) == set(range(8))
        assert not shown & set(awareness.dimensions)
        for clash in awareness.clashes:
            assert places(clash)
            assert all(one != other for one, other in zip(*clash.values, strict=True))
            # Not to the bit: a sine computed among others may differ from one computed alone in its
            # last digit.
            if encoding is not None:
                for again, shown in zip(
                    read(encoding, clash), clash.values, strict=True
                ):
                    assert again == pytest.approx(shown, rel=1e-12, abs=1e-12)
        if awareness.collision is not None:
            assert not places(awareness.collision)
            assert awareness.collision.dimensions == awareness.dimensions
            assert awareness.collision.values[0] == pytest.approx(
                awareness.collision.values[1], rel=1e-12, abs=1e-12
            )
        assert awareness.holds == (
            awareness.dimensions != () and awareness.collision is None
        )


def same_position(pair: PositionPair) -> bool:
    return pair.positions[0] == pair.positions[1]


def same_reverse_position(pair: PositionPair) -> bool:
    return pair.lengths[0] - pair.positions[0] == pair.lengths[1] - pair.positions[1]


def read(
    encoding: torch.nn.Module, pair: PositionPair
) -> tuple[tuple[float, ...], ...]:
    values = []
    for position, length in zip(pair.positions, pair.lengths, strict=True):
        forward = torch.arange(length).unsqueeze(0)
        encoded = encoding(forward, length - 1 - forward, torch.tensor([length]))[
            0, position
        ]
        values.append(tuple(encoded[list(pair.dimensions)].tolist()))
    return tuple(values)


def test_the_counterexample_for_spe_is_that_of_the_paper() -> None:
    """Theorem 3.4: the last item of length 1 is [0, 1, 0, 1, ..], that of length 2 is another in
    every dimension."""
    (clash,) = analyse("spe", max_length=12, d=8).backward.clashes
    assert (clash.positions, clash.lengths, clash.dimensions) == ((0, 1), (1, 2), ALL)
    assert clash.values[0] == (0, 1, 0, 1, 0, 1, 0, 1)
    assert clash.values[1][:2] == pytest.approx((math.sin(1), math.cos(1)))


ODD = [
    ("spe", 3),
    ("spe", 7),
    ("dpe", 6),
]  # a sine without its cosine can't be moved by a matrix


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
    longer = analyse(table_of_10, max_length=11, d=8)
    assert not longer.forward.holds
    assert longer.forward.collision is not None
    assert sorted(longer.forward.collision.positions) == [9, 10]


def test_a_random_table_is_the_same_one_each_time() -> None:
    torch.manual_seed(1)
    first = analyse("ldpe", max_length=9, d=8)
    torch.manual_seed(2)
    assert analyse("ldpe", max_length=9, d=8) == first


def test_a_module_is_examined_as_it_would_serve() -> None:
    class Dropping(torch.nn.Module):
        def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
            return torch.nn.functional.dropout(
                BASE["dpe"](forward, backward, length), 0.5, self.training
            )

    assert analyse(Dropping(), max_length=9, d=8).forward.dimensions == FIRST


def test_the_users_module_is_left_as_it_was() -> None:
    own = make_encoding("lpe", d=4, max_length=6)
    analyse(own, max_length=6, d=4)
    assert own.get_parameter("table").dtype == torch.float32
    assert own.training


def test_a_scheme_in_float32_is_judged_by_the_rounding_of_float32() -> None:
    def single(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        values = BASE["dpe"](forward, backward, length).float()
        return values + (1e-7 * (length[:, None, None] % 2)).float()

    found = analyse(single, max_length=20, d=8)
    assert found.forward.dimensions == FIRST
    assert found.backward.dimensions == LAST


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
    uses_backward = torch.tensor(backward[:d]).double()

    def mixed(f: Tensor, b: Tensor, length: Tensor) -> Tensor:
        return (
            f.unsqueeze(-1) * uses_forward + math.pi * b.unsqueeze(-1) * uses_backward
        ).double()

    found: Analysis = analyse(mixed, max_length, d)
    assert found.forward.dimensions == tuple(k for k in range(d) if not backward[k])
    assert found.backward.dimensions == tuple(k for k in range(d) if not forward[k])
    assert found.forward.holds == any(forward[k] and not backward[k] for k in range(d))
    assert found.backward.holds == any(backward[k] and not forward[k] for k in range(d))
    if found.forward.holds and found.backward.holds:
        assert found.unique
