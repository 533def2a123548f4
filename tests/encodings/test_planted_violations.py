"""Awareness by its definitions: violations planted into encodings are found, and shown where they
are."""

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from posrec.encodings.awareness import EncodingTable, analyse, collision
from posrec.encodings.schemes import Scheme, make_encoding

BASE = {
    name: make_encoding(name, d=8, max_length=30).double()
    for name in ("spe", "rspe", "dpe")
}
FIRST = tuple(range(4))
LAST = tuple(range(4, 8))


def one_bad_dimension(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """SPE whose dimension 5 also depends, by a hair, on the length."""
    encoded = BASE["spe"](forward, backward, length)
    encoded[..., 5] += 1e-9 * (length.unsqueeze(1) == 17)
    return encoded


def test_one_bad_dimension_is_left_out_and_shown() -> None:
    forward = analyse(one_bad_dimension, max_length=20, d=8).forward
    assert forward.holds
    assert forward.dimensions == (0, 1, 2, 3, 4, 6, 7)
    (clash,) = forward.clashes
    assert clash.dimensions == (5,)
    assert 17 in clash.lengths
    assert clash.values[1][0] - clash.values[0][0] == pytest.approx(1e-9)


def collides_at_19(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """DPE, but in sessions of 19 clicks position 7 takes the encoding of position 3."""
    wrong = (length.unsqueeze(1) == 19) & (forward == 7)
    forward = torch.where(wrong, 3, forward)
    backward = torch.where(wrong, 15, backward)
    return BASE["dpe"](forward, backward, length)


def test_a_collision_at_length_19_alone_is_found() -> None:
    analysis = analyse(collides_at_19, max_length=30, d=8)
    collision = analysis.collision
    assert collision is not None
    assert (collision.positions, collision.lengths) == ((3, 7), (19, 19))
    assert analysis.collision_within_length == collision
    assert not analysis.forward.holds
    assert not analysis.backward.holds
    before = analyse(collides_at_19, max_length=18, d=8)
    assert before.unique
    assert before.forward.holds
    assert before.backward.holds


def spoiled_in_turn(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """Dimension k is the position, but in sessions of k + 1 clicks it is something else."""
    length = length[:, None, None]
    spoiled = torch.arange(3) + 1 == length
    return torch.where(spoiled, 50.0 + length, forward.unsqueeze(-1)).double()


def test_the_order_of_the_quantifiers_matters() -> None:
    """Any two of the lengths 1, 2, 3 share a dimension. No dimension serves all three."""
    forward = analyse(spoiled_in_turn, max_length=3, d=3).forward
    assert forward.dimensions == ()
    assert not forward.holds
    assert forward.holds_by_pair
    # No single pair of sessions breaks all three dimensions, so it takes more than one to rule out
    # every A.
    assert len(forward.clashes) > 1
    assert set().union(*(clash.dimensions for clash in forward.clashes)) == {0, 1, 2}


def unlike_at_pair(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """Aware up to length 4. Lengths 4 and 5 share dimension 1 alone, which can't tell positions 0
    and 4 apart."""
    position = forward.double()
    first = torch.where(length.unsqueeze(1) == 5, position + 9, position)
    return torch.stack([first, position % 4], dim=-1)


def separated_by_pairs(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """Dimension 0 can't tell positions 1 and 2 apart. Dimension 1 can, but length 1 spoils it,
    which has only position 0."""
    spoiled = torch.where(length.unsqueeze(1) == 1, 99, forward)
    return torch.stack([forward.clamp(max=1), spoiled], dim=-1).double()


@pytest.mark.parametrize(
    ("scheme", "max_length", "holds", "by_pair"),
    [
        (unlike_at_pair, 4, True, True),
        (unlike_at_pair, 5, False, False),
        (separated_by_pairs, 3, False, True),
    ],
)
def test_the_literal_reading_needs_separation_of_the_positions_of_the_two_lengths(
    scheme: Scheme, max_length: int, holds: bool, by_pair: bool
) -> None:
    forward = analyse(scheme, max_length, d=2).forward
    assert (forward.holds, forward.holds_by_pair) == (holds, by_pair)


def test_slow_sinusoids_differ_and_rounding_noise_does_not() -> None:
    def slow(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return torch.cos(forward.double() / 10000).unsqueeze(-1).expand(-1, -1, 2)

    def noisy(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        moved = forward.double() + 1e-16 * length.unsqueeze(1)
        return moved.unsqueeze(-1).sin().expand(-1, -1, 2)

    analysis = analyse(slow, max_length=3, d=2)
    assert analysis.forward.holds
    assert not analysis.backward.holds
    assert analyse(noisy, max_length=9, d=2).forward.holds


def test_a_dimension_of_rounding_noise_counts_as_zero() -> None:
    def cancelled(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return torch.stack([torch.ones(forward.shape), 1e-17 * forward], -1).double()

    analysis = analyse(cancelled, max_length=20, d=2)
    assert not analysis.unique_within_length
    assert not analysis.forward.holds


@pytest.mark.parametrize("factor", [1e-20, 1e12])
def test_the_scale_of_an_encoding_changes_nothing(factor: float) -> None:
    def scaled(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        noise = 1e-16 * length[:, None, None]
        return factor * (BASE["dpe"](forward, backward, length) + noise)

    analysis = analyse(scaled, 20, 8)
    assert analysis.forward.dimensions == FIRST
    assert analysis.backward.dimensions == LAST
    assert analysis.unique
    assert analysis.linear.holds


@given(
    points=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12
    ),
    tolerance=st.sampled_from([0.5, 1.5, 2.5]),
)
# By the weighted sum, the second is between the others.
@example(points=[(0, 1), (2, 0), (1, 2)], tolerance=1.5)
@settings(max_examples=200, deadline=None)
def test_a_collision_is_found_exactly_when_comparing_every_two_rows_finds_one(
    points: list[tuple[int, int]], tolerance: float
) -> None:
    """With a tolerance this wide, equal rows are often not side by side in the order of the
    weighted sum."""
    rows = torch.tensor(points).double()
    number = torch.arange(len(points))
    length = torch.full_like(number, len(points))
    table = EncodingTable(rows, torch.ones(2), number, length, tolerance)
    pair = collision(table, number)
    apart = torch.cdist(rows, rows, p=torch.inf)
    equal = (apart <= tolerance).triu(1).nonzero().tolist()
    assert (pair is not None) == bool(equal)
    if pair is not None:
        assert list(pair.positions) in equal
