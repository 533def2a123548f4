"""Awareness by its definitions: violations planted into encodings are found, and shown where they
are."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
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
    found = analyse(one_bad_dimension, max_length=20, d=8)
    assert found.forward.holds
    assert found.forward.dimensions == (0, 1, 2, 3, 4, 6, 7)
    (clash,) = found.forward.clashes
    assert clash.dimensions == (5,)
    assert 17 in clash.lengths
    assert clash.values[1][0] - clash.values[0][0] == pytest.approx(1e-9)


def collides_at_19(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """DPE, but in sessions of 19 clicks position 7 takes the encoding of position 3."""
    wrong = (length.unsqueeze(1) == 19) & (forward == 7)
    return BASE["dpe"](
        torch.where(wrong, 3, forward), torch.where(wrong, 15, backward), length
    )


def test_a_collision_at_length_19_alone_is_found() -> None:
    found = analyse(collides_at_19, max_length=30, d=8)
    assert found.collision is not None
    assert (found.collision.positions, found.collision.lengths) == ((3, 7), (19, 19))
    assert found.collision_within_length == found.collision
    assert not found.forward.holds
    assert not found.backward.holds
    before = analyse(collides_at_19, max_length=18, d=8)
    assert before.unique
    assert before.forward.holds
    assert before.backward.holds


def spoiled_in_turn(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """Dimension k is the position, but in sessions of k + 1 clicks it is something else."""
    spoiled = torch.arange(3) + 1 == length[:, None, None]
    return torch.where(
        spoiled, 50.0 + length[:, None, None], forward.unsqueeze(-1).double()
    ).double()


def test_the_order_of_the_quantifiers_matters() -> None:
    """Any two of the lengths 1, 2, 3 share a dimension. No dimension serves all three."""
    found = analyse(spoiled_in_turn, max_length=3, d=3)
    assert found.forward.dimensions == ()
    assert not found.forward.holds
    assert found.forward.holds_by_pair
    # No single pair of sessions breaks all three dimensions, so it takes more than one to rule out
    # every A.
    assert {
        dimension for clash in found.forward.clashes for dimension in clash.dimensions
    } == {0, 1, 2}
    assert len(found.forward.clashes) > 1


def unlike_at_pair(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """Aware up to length 4. Lengths 4 and 5 share dimension 1 alone, which can't tell positions 0
    and 4 apart."""
    place = forward.double()
    first = torch.where(length.unsqueeze(1) == 5, place + 9, place)
    return torch.stack([first, place % 4], dim=-1)


def separated_by_pairs(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """Dimension 0 can't tell places 1 and 2 apart. Dimension 1 can, but length 1 spoils it, which
    has only place 0."""
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
    found = analyse(scheme, max_length, d=2).forward
    assert (found.holds, found.holds_by_pair) == (holds, by_pair)


def test_slow_sinusoids_differ_and_rounding_noise_does_not() -> None:
    slow = analyse(
        lambda f, b, n: torch.cos(f.double() / 10000).unsqueeze(-1).expand(-1, -1, 2),
        max_length=3,
        d=2,
    )
    assert slow.forward.holds
    assert not slow.backward.holds
    noise = analyse(
        lambda f, b, n: (
            (f.double() + 1e-16 * n.unsqueeze(1)).unsqueeze(-1).sin().expand(-1, -1, 2)
        ),
        9,
        2,
    )
    assert noise.forward.holds


def test_a_dimension_of_rounding_noise_counts_as_zero() -> None:
    def cancelled(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return torch.stack(
            [torch.ones(forward.shape), 1e-17 * forward], dim=-1
        ).double()

    found = analyse(cancelled, max_length=20, d=2)
    assert not found.unique_within_length
    assert not found.forward.holds


@pytest.mark.parametrize("factor", [1e-20, 1e12])
def test_the_scale_of_an_encoding_changes_nothing(factor: float) -> None:
    found = analyse(
        lambda f, b, n: factor * (BASE["dpe"](f, b, n) + 1e-16 * n[:, None, None]),
        20,
        8,
    )
    assert (found.forward.dimensions, found.backward.dimensions) == (FIRST, LAST)
    assert found.unique
    assert found.linear.holds


@given(
    points=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12
    ),
    tolerance=st.sampled_from([0.5, 1.5, 2.5]),
)
@example(
    points=[(0, 1), (2, 0), (1, 2)], tolerance=1.5
)  # by the weighted sum, the second is between the others
@settings(max_examples=200, deadline=None)
def test_a_collision_is_found_exactly_when_comparing_every_two_rows_finds_one(
    points: list[tuple[int, int]], tolerance: float
) -> None:
    """With a tolerance this wide, equal rows are often not side by side in the order of the
    weighted sum."""
    count = torch.arange(len(points))
    table = EncodingTable(
        torch.tensor(points).double(),
        torch.ones(2),
        count,
        torch.full_like(count, len(points)),
        tolerance,
    )
    found = collision(table, count, torch.tensor([True, True]))
    equal = [
        (a, b)
        for b in range(len(points))
        for a in range(b)
        if max(
            abs(one - other) for one, other in zip(points[a], points[b], strict=True)
        )
        <= tolerance
    ]
    assert (found is not None) == bool(equal)
    if found is not None:
        assert found.positions in equal
