"""collate and SessionBatch against a plain restatement: a sample is a prefix and the click after
it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.dataset import SessionDataset, collate
from posrec.nn.batch import SessionBatch

sessions_strategy = st.lists(
    st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=8
)


def dataset(sessions: list[list[int]]) -> SessionDataset:
    offsets = [0]
    for session in sessions:
        offsets.append(offsets[-1] + len(session))
    items = torch.tensor(
        [item for session in sessions for item in session], dtype=torch.int32
    )
    return SessionDataset(items, torch.tensor(offsets), torch.arange(len(sessions)))


def samples(sessions: list[list[int]]) -> list[tuple[list[int], int]]:
    return [
        (session[:end], session[end])
        for session in sessions
        for end in range(1, len(session))
    ]


@given(sessions_strategy, st.integers(1, 12), st.data())
def test_collate_of_a_part(
    sessions: list[list[int]], max_length: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(sessions)))
    end = data.draw(st.integers(start, len(sessions)))
    part = dataset(sessions).part(start, end)
    expected = samples(sessions[start:end])
    assert (len(part), part.sessions, part.clicks) == (
        len(expected),
        end - start,
        sum(map(len, sessions[start:end])),
    )
    if expected:
        chosen = data.draw(
            st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=10)
        )
        check(
            collate(part, torch.tensor(chosen), max_length),
            [expected[i] for i in chosen],
            max_length,
        )


def check(
    batch: SessionBatch, expected: list[tuple[list[int], int]], max_length: int
) -> None:
    kept = [prefix[-max_length:] for prefix, _ in expected]
    assert batch.items.tolist() == [
        prefix + [0] * (max_length - len(prefix)) for prefix in kept
    ]
    assert batch.lengths.tolist() == [len(prefix) for prefix in kept]
    assert batch.targets is not None
    assert batch.targets.tolist() == [target for _, target in expected]
    assert {batch.items.dtype, batch.lengths.dtype, batch.targets.dtype} == {
        torch.int64
    }
    assert batch.mask.tolist() == [
        [column < len(prefix) for column in range(max_length)] for prefix in kept
    ]


def test_collate_takes_sample_ids_of_any_whole_type() -> None:
    data = dataset([[1, 2, 3], [4, 5]])
    for dtype in (torch.int32, torch.uint8, torch.int64):
        assert collate(data, torch.tensor([2, 0], dtype=dtype), 2).items.tolist() == [
            [4, 0],
            [1, 0],
        ]


@given(sessions_strategy, st.none() | st.integers(1, 12))
def test_a_batch_of_sessions_in_hand(
    sessions: list[list[int]], max_length: int | None
) -> None:
    batch = SessionBatch.of(sessions, max_length)
    kept = [
        session if max_length is None else session[-max_length:] for session in sessions
    ]
    assert [
        row[:n]
        for row, n in zip(batch.items.tolist(), batch.lengths.tolist(), strict=True)
    ] == kept
    assert batch.items.shape == (len(sessions), max(map(len, kept)))
    assert not batch.items[~batch.mask].any()
    assert batch.targets is None


@pytest.mark.parametrize("sessions", [[], [[1], []]])
def test_a_batch_needs_clicks(sessions: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        SessionBatch.of(sessions)


def test_trimming_takes_padding_alone() -> None:
    batch = collate(dataset([[1, 2, 3]]), torch.arange(2), 10)
    assert batch.trimmed().items.tolist() == [[1, 0], [1, 2]]
    assert batch.trimmed().targets is batch.targets
