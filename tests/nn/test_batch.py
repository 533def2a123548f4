"""collate and SessionBatch against a plain restatement: a sample is a prefix and the click after
it."""

import pytest
import torch
from hypothesis import given, strategies as st

from posrec.data.dataset import SessionDataset, collate
from posrec.nn.batch import SessionBatch

sessions_strategy = st.lists(
    st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=8
)


def dataset(sessions: list[list[int]]) -> SessionDataset:
    clicks = [item for session in sessions for item in session]
    items = torch.tensor(clicks, dtype=torch.int32)
    offsets = torch.tensor([0, *map(len, sessions)]).cumsum(0)
    return SessionDataset(items, offsets, torch.arange(len(sessions)))


@given(sessions_strategy, st.integers(1, 12), st.data())
def test_collate_of_some_sessions(
    sessions: list[list[int]], max_length: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(sessions)))
    end = data.draw(st.integers(start, len(sessions)))
    some = dataset(sessions).part(start, end)
    prefixes = []
    targets = []
    for session in sessions[start:end]:
        for length in range(1, len(session)):
            prefixes.append(session[:length][-max_length:])
            targets.append(session[length])
    assert len(some) == len(targets)
    assert some.sessions == end - start
    assert some.clicks == sum(map(len, sessions[start:end]))
    if not targets:
        return
    sample = st.integers(0, len(targets) - 1)
    chosen = data.draw(st.lists(sample, min_size=1, max_size=10))
    batch = collate(some, torch.tensor(chosen), max_length)
    assert batch.items.shape == (len(chosen), max_length)
    check(batch, [prefixes[sample] for sample in chosen])
    assert batch.targets is not None
    assert batch.targets.dtype == torch.int64
    assert batch.targets.tolist() == [targets[sample] for sample in chosen]


def check(batch: SessionBatch, sessions: list[list[int]]) -> None:
    """The batch has these sessions, and zeros after them."""
    width = batch.items.shape[1]
    padding = [[0] * (width - len(session)) for session in sessions]
    padded = [session + zeros for session, zeros in zip(sessions, padding, strict=True)]
    assert batch.items.tolist() == padded
    assert batch.lengths.tolist() == [len(session) for session in sessions]
    assert batch.items.dtype == batch.lengths.dtype == torch.int64
    assert torch.equal(batch.mask, batch.items > 0)


def test_collate_takes_sample_ids_of_any_whole_type() -> None:
    data = dataset([[1, 2, 3], [4, 5]])
    for dtype in (torch.int32, torch.uint8, torch.int64):
        batch = collate(data, torch.tensor([2, 0], dtype=dtype), 2)
        assert batch.items.tolist() == [[4, 0], [1, 0]]


@given(sessions_strategy, st.none() | st.integers(1, 12))
def test_a_batch_of_sessions_in_hand(
    sessions: list[list[int]], max_length: int | None
) -> None:
    batch = SessionBatch.of(sessions, max_length)
    if max_length is not None:
        sessions = [session[-max_length:] for session in sessions]
    assert batch.items.shape[1] == max(map(len, sessions))
    check(batch, sessions)
    assert batch.targets is None


@pytest.mark.parametrize("sessions", [[], [[1], []]])
def test_a_batch_needs_clicks(sessions: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        SessionBatch.of(sessions)


def test_trimming_takes_padding_alone() -> None:
    batch = collate(dataset([[1, 2, 3]]), torch.arange(2), 10)
    assert batch.trimmed().items.tolist() == [[1, 0], [1, 2]]
    assert batch.trimmed().targets is batch.targets
