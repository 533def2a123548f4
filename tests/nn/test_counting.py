"""The k nearest against sorting, and lists of different lengths against plain ones."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.nn.counting import first_in_list, nearest, offsets_of, spread


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.1, 0.5, 2.0, 1e30])),
        max_size=20,
    ),
    st.integers(1, 4),
)
def test_the_nearest_are_the_most_similar_and_of_equals_the_first(
    pairs: list[tuple[int, float]], k: int
) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0])
    expected = []
    for row in range(4):
        of_row = [place for place, pair in enumerate(pairs) if pair[0] == row]
        expected += sorted(of_row, key=lambda place: -pairs[place][1])[:k]
    row = torch.tensor([pair[0] for pair in pairs], dtype=torch.int64)
    assert (
        nearest(row, torch.tensor([pair[1] for pair in pairs]), k).tolist() == expected
    )


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), st.data()
)
def test_spreading_lists_reads_them_one_after_the_other(
    values: list[list[int]], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=6))
    most = data.draw(st.none() | st.integers(0, 3))
    flat = torch.tensor([value for one in values for value in one], dtype=torch.int64)
    offsets = offsets_of(
        torch.repeat_interleave(torch.tensor([len(one) for one in values])), len(values)
    )
    owner, place = spread(offsets, torch.tensor(chosen, dtype=torch.int64), most)
    assert flat[place].tolist() == [
        value for one in chosen for value in values[one][:most]
    ]
    assert owner.tolist() == [
        number for number, one in enumerate(chosen) for _ in values[one][:most]
    ]
    if most is not None:
        kept = first_in_list(
            spread(offsets, torch.tensor(chosen, dtype=torch.int64))[0], most
        )
        assert int(kept.sum()) == len(place)
