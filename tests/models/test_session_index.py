"""The index of sessions against plain lists, and the k nearest against sorting."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.models.baselines.counting.session_index import SessionIndex
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, first_in_list, nearest, offsets_of, spread

ITEMS = 6
sessions = st.lists(st.integers(1, ITEMS), min_size=1, max_size=6)
logs = st.lists(sessions, min_size=1, max_size=8)


def indexed(log: list[list[int]]) -> SessionIndex:
    index = SessionIndex(ITEMS)
    index.count(torch.tensor([item for one in log for item in one]), torch.tensor([0, *map(len, log)]).cumsum(0))
    return index


def lists(offsets: torch.Tensor, values: torch.Tensor) -> list[list[int]]:
    return [part.tolist() for part in values.tensor_split(offsets[1:-1])]


@given(logs)
def test_both_ways_round_from_the_newest(log: list[list[int]]) -> None:
    index, newest = indexed(log), log[::-1]
    assert lists(index.session_offsets, index.session_items) == [sorted(set(session)) for session in newest]
    latest = [[len(one) - 1 - one[::-1].index(item) for item in sorted(set(one))] for one in newest]
    assert lists(index.session_offsets, index.positions) == latest
    holding = [[number for number, one in enumerate(newest) if item in one] for item in range(ITEMS + 1)]
    assert lists(index.item_offsets, index.item_sessions) == holding


@given(logs, st.lists(sessions, min_size=1, max_size=4), st.integers(1, 5))
def test_candidates_are_the_newest_that_share_an_item(
    log: list[list[int]], asked: list[list[int]], sample_size: int
) -> None:
    batch, expected = SessionBatch.of(asked), []
    weights = torch.arange(batch.items.shape[1]).expand(batch.items.shape) + 1.0
    found = indexed(log).candidates(batch.items, batch.lengths, weights, sample_size)
    for row, session in enumerate(asked):
        sharing = [(n, set(one) & set(session)) for n, one in enumerate(log[::-1]) if set(one) & set(session)]
        for number, shared in sharing[:sample_size]:
            places = [len(session) - 1 - session[::-1].index(item) for item in shared]
            expected.append((row, number, sum(places) + len(places), len(session) - 1 - max(places)))
    columns = (found.row, found.session, found.overlap, found.backward)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.1, 0.5, 2.0, 1e30])), max_size=20), st.integers(1, 4)
)
def test_the_nearest_are_the_most_similar_and_of_equals_the_first(pairs: list[tuple[int, float]], k: int) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0])
    expected = []
    for row in range(4):
        of_row = [place for place, pair in enumerate(pairs) if pair[0] == row]
        expected += sorted(of_row, key=lambda place: -pairs[place][1])[:k]
    row = torch.tensor([pair[0] for pair in pairs], dtype=torch.int64)
    assert nearest(row, torch.tensor([pair[1] for pair in pairs]), k).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), st.data())
def test_spreading_lists_reads_them_one_after_the_other(values: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=6))
    most = data.draw(st.none() | st.integers(0, 3))
    flat = torch.tensor([value for one in values for value in one], dtype=torch.int64)
    offsets = offsets_of(torch.repeat_interleave(torch.tensor([len(one) for one in values])), len(values))
    owner, place = spread(offsets, torch.tensor(chosen, dtype=torch.int64), most)
    assert flat[place].tolist() == [value for one in chosen for value in values[one][:most]]
    assert owner.tolist() == [number for number, one in enumerate(chosen) for _ in values[one][:most]]
    if most is not None:
        kept = first_in_list(spread(offsets, torch.tensor(chosen, dtype=torch.int64))[0], most)
        assert int(kept.sum()) == len(place)


def test_sums_replace_what_was_there_and_leave_the_rest() -> None:
    table = torch.tensor([[-1.0, 5.0, -2.0]])
    add_up(table, torch.tensor([1, 0, 1]), torch.tensor([0.25, 0.0, 0.5]))
    assert table.tolist() == [[0.0, 0.75, -2.0]]
