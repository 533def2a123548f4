"""The k nearest against sorting, and lists of different lengths against plain ones."""

import torch
from hypothesis import given, strategies as st

from posrec.nn.counting import first_in_list, nearest, offsets_of, spread

similarities = st.sampled_from([0.0, 0.1, 0.5, 2.0, 1e30])


@given(
    st.lists(st.tuples(st.integers(0, 3), similarities), max_size=20),
    st.integers(1, 4),
)
def test_the_nearest_are_the_most_similar_and_of_equals_the_first(
    pairs: list[tuple[int, float]], k: int
) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0])
    expected = []
    for row in range(4):
        of_row = [index for index, pair in enumerate(pairs) if pair[0] == row]
        expected += sorted(of_row, key=lambda index: -pairs[index][1])[:k]
    rows = torch.tensor([row for row, _ in pairs], dtype=torch.int64)
    similarity = torch.tensor([similarity for _, similarity in pairs])
    assert nearest(rows, similarity, k).tolist() == expected


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), st.data()
)
def test_spreading_lists_reads_them_one_after_the_other(
    lists: list[list[int]], data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=6))
    most = data.draw(st.none() | st.integers(0, 3))
    flat = torch.tensor([value for values in lists for value in values])
    sizes = torch.tensor([len(values) for values in lists])
    offsets = offsets_of(torch.repeat_interleave(sizes), len(lists))
    chosen = torch.tensor(numbers, dtype=torch.int64)
    owner, position = spread(offsets, chosen, most)
    expected = [
        (owner, value)
        for owner, number in enumerate(numbers)
        for value in lists[number][:most]
    ]
    assert list(zip(owner.tolist(), flat[position].tolist(), strict=True)) == expected
    if most is not None:
        every_owner, _ = spread(offsets, chosen)
        assert int(first_in_list(every_owner, most).sum()) == len(position)
