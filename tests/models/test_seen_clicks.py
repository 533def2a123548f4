"""What each click sees, and returns to an item, worked out by hand and by a plain loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.models.seen_clicks import every_click, last_clicks, returns
from posrec.nn.batch import SessionBatch
from posrec.nn.packing import pack

sessions = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=7), min_size=1, max_size=4)


def test_the_session_a_b_a_a() -> None:
    batch = SessionBatch.of([[1, 2, 1, 1]])
    packing = pack(batch.mask)
    every = every_click(packing)
    found = returns(packing.to_rows(batch.items), every)
    assert found.back.tolist() == [0, 0, 2, 1]
    assert found.ahead.tolist() == [2, 4, 1, 4]  # 4: never again
    assert found.clicks.tolist() == [1, 1, 2, 3]
    assert found.since.tolist() == [0, 0, 2, 3]
    # By distance: at the last click, that click itself, and b two before it.
    assert found.latest_of_items(last_clicks(packing, batch.lengths)).tolist() == [[True, False, True, False]]


@given(sessions)
def test_each_prefix_has_its_items_once_at_their_latest_clicks(batch: list[list[int]]) -> None:
    whole = SessionBatch.of(batch)
    packing = pack(whole.mask)
    items, every = packing.to_rows(whole.items), every_click(packing)
    found = returns(items, every).latest_of_items(every)
    row = 0
    for session in batch:
        for end in range(1, len(session) + 1):
            prefix = session[:end]
            expected = {prefix[::-1].index(item): item for item in set(prefix)}  # by distance
            seen = {distance: int(every.of(items)[row, distance]) for distance in found[row].nonzero()[:, 0].tolist()}
            assert seen == expected
            assert int(every.place[row]) == end - 1
            assert every.seen[row].sum() == end
            row += 1
    assert torch.equal(last_clicks(packing, whole.lengths).place, whole.lengths - 1)
