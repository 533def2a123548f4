"""Passes: each sample is read by one pass, and reads what it would alone."""

from itertools import pairwise

import torch
from hypothesis import given, strategies as st

from posrec.data.dataset import SessionDataset, collate
from posrec.data.passes import collate_passes, cut_into_batches, passes_over

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def dataset(counts: list[int]) -> SessionDataset:
    offsets = torch.tensor([0, *counts]).cumsum(0)
    items = torch.arange(1, sum(counts) + 1, dtype=torch.int32)
    return SessionDataset(items, offsets, torch.arange(len(counts)))


@given(lengths, st.integers(1, 12), st.data())
def test_every_sample_is_in_one_pass_and_reads_what_it_does_alone(
    counts: list[int], longest: int, data: st.DataObject
) -> None:
    samples = dataset(counts)
    stride = data.draw(st.integers(1, longest))
    passes = passes_over(samples, longest, stride)
    batch = collate_passes(samples, passes.start, passes.clicks, longest)
    contexts = {}
    for row in range(len(passes)):
        read = batch.items[row, : batch.lengths[row]].tolist()
        for length in range(int(passes.skipped[row]) + 1, len(read) + 1):
            target = int(passes.start[row]) + length
            assert target not in contexts
            contexts[target] = read[:length]
    ids = torch.arange(len(samples))
    alone = collate(samples, ids, longest, stride)
    _, targets = samples.locate(ids)
    assert contexts == {
        int(target): alone.items[row, : alone.lengths[row]].tolist()
        for row, target in enumerate(targets)
    }


def test_a_session_that_fits_is_one_pass() -> None:
    passes = passes_over(dataset([5, 1, 2]), longest=4, stride=2)
    assert passes.start.tolist() == [0, 6]  # a session of one click has no sample
    assert passes.clicks.tolist() == [4, 1]
    assert passes.skipped.tolist() == [0, 0]


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 20))
def test_batches_hold_as_much_as_fits(clicks: list[int], most: int) -> None:
    cut = cut_into_batches(torch.tensor(clicks, dtype=torch.int64), most)
    ends = [0, *cut.tolist()]
    assert ends[-1] == len(clicks)
    for begin, end in pairwise(ends):
        assert sum(clicks[begin:end]) <= most or end == begin + 1
        assert end == len(clicks) or sum(clicks[begin : end + 1]) > most
