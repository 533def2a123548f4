"""Co-clicked items and vectors smoothed over them, against dense matrices and plain loops."""

from collections import defaultdict

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from posrec.nn.items.coclicks import CoClickGraph, co_clicks
from posrec.nn.items.sparse_matrix import SparseMatrix

ITEMS = 6
ROWS = 8  # two of them fill the table up
logs = st.lists(
    st.lists(st.integers(1, ITEMS), min_size=1, max_size=6), min_size=1, max_size=8
)


def flat(log: list[list[int]]) -> tuple[Tensor, Tensor]:
    clicks = [item for session in log for item in session]
    offsets = torch.tensor([0, *map(len, log)]).cumsum(0)
    return torch.tensor(clicks, dtype=torch.int32), offsets


def counted_slowly(log: list[list[int]], window: int) -> dict[int, dict[int, float]]:
    counts: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for session in log:
        for position, item in enumerate(session):
            for other_position, other in enumerate(session):
                distance = abs(position - other_position)
                if item != other and distance <= window:
                    counts[item][other] += 1 / distance
    return counts


@given(logs, st.integers(1, 4))
def test_counts_agree_with_plain_loops(log: list[list[int]], window: int) -> None:
    counts: dict[int, dict[int, float]] = defaultdict(dict)
    for item, other, count in zip(*co_clicks(*flat(log), ITEMS, window), strict=True):
        counts[int(item)][int(other)] = float(count)
    expected = counted_slowly(log, window)
    assert counts.keys() == expected.keys()
    for item in expected:
        assert counts[item] == pytest.approx(dict(expected[item]))


def test_of_equal_counts_the_newest_are_kept() -> None:
    graph = CoClickGraph(1.0, neighbours=1, window=1)
    graph.count(*flat([[1, 2], [1, 3]]), ITEMS)
    first = graph.edges.columns[graph.edges.offsets[0] : graph.edges.offsets[1]]
    assert (first + 1).tolist() == [3]


@given(logs, st.integers(1, 3))
def test_smoothing_and_its_gradient_agree_with_a_dense_matrix(
    log: list[list[int]], neighbours: int
) -> None:
    graph = CoClickGraph(0.5, neighbours, window=2)
    graph.count(*flat(log), ITEMS)
    dense = torch.zeros(ROWS, ROWS, dtype=torch.double)
    row = torch.repeat_interleave(graph.edges.offsets.diff())
    dense[row, graph.edges.columns] = graph.edges.values.double()
    counts = counted_slowly(log, 2)
    for item in range(1, ITEMS + 1):
        # The most clicked neighbours, weighted by their counts.
        most = sorted(counts[item].values(), reverse=True)[:neighbours]
        weights = dense[item - 1][dense[item - 1] > 0].tolist()
        expected = [count / sum(most) for count in most]
        assert sorted(weights, reverse=True) == pytest.approx(expected)
    torch.manual_seed(0)
    table = torch.randn(ROWS, 3, dtype=torch.double, requires_grad=True)
    factor = torch.randn(ROWS, 3, dtype=torch.double)
    smoothed = graph.smoothed(table)
    assert torch.allclose(smoothed, table + 0.5 * dense @ table, atol=1e-6)
    (gradient,) = torch.autograd.grad((smoothed * factor).sum(), table)
    assert torch.allclose(gradient, factor + 0.5 * dense.T @ factor, atol=1e-6)


def test_unused_entries_at_the_end_of_the_lists_change_no_product() -> None:
    row = torch.tensor([4, 0, 4])
    column = torch.tensor([1, 2, 5])
    value = torch.tensor([0.5, 2.0, 1.0])
    table = torch.arange(24.0).view(ROWS, 3).requires_grad_()
    products = []
    gradients: list[torch.Tensor] = []
    for most, length in ((None, 3), (8 * ITEMS, 6)):
        matrix = SparseMatrix()
        matrix.fill(row, column, value, (ROWS, ROWS), most)
        assert len(matrix.columns) == length
        products.append(matrix.times(table))
        gradients += torch.autograd.grad(products[-1].square().sum(), table)
    assert torch.equal(*products)
    assert products[0][4].tolist() == (0.5 * table[1] + table[5]).tolist()
    assert torch.equal(*gradients)


def test_without_a_weight_nothing_is_counted() -> None:
    graph = CoClickGraph(0.0, neighbours=3, window=2)
    graph.count(*flat([[1, 2, 3]]), ITEMS)
    table = torch.randn(ROWS, 3)
    assert graph.smoothed(table) is table
