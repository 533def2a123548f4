"""Co-clicked items and vectors smoothed over them, against dense matrices and plain loops."""

from collections import defaultdict

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posrec.nn.items.coclicks import CoClickGraph, co_clicks
from posrec.nn.items.sparse_matrix import SparseMatrix

# two rows fill the table up
ITEMS = 6
ROWS = 8
logs = st.lists(
    st.lists(st.integers(1, ITEMS), min_size=1, max_size=6), min_size=1, max_size=8
)


def flat(log: list[list[int]]) -> tuple[Tensor, Tensor]:
    clicks = torch.tensor(
        [item for session in log for item in session], dtype=torch.int32
    )
    return clicks, torch.tensor([0, *map(len, log)]).cumsum(0)


def counted_slowly(log: list[list[int]], window: int) -> dict[int, dict[int, float]]:
    counts: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for session in log:
        for place, item in enumerate(session):
            for other_place, other in enumerate(session):
                distance = abs(place - other_place)
                if item != other and distance <= window:
                    counts[item][other] += 1 / distance
    return counts


@given(logs, st.integers(1, 4))
def test_counts_agree_with_plain_loops(log: list[list[int]], window: int) -> None:
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for item, other, count in zip(*co_clicks(*flat(log), ITEMS, window), strict=True):
        found[int(item)][int(other)] = float(count)
    expected = counted_slowly(log, window)
    assert found.keys() == expected.keys()
    for item, counts in expected.items():
        assert found[item].keys() == counts.keys()
        assert all(
            abs(found[item][other] - count) < 1e-9 for other, count in counts.items()
        )


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
    for row in range(ROWS):
        for place in range(
            int(graph.edges.offsets[row]), int(graph.edges.offsets[row + 1])
        ):
            dense[row, graph.edges.columns[place]] = graph.edges.values[place]
    counts = counted_slowly(log, 2)
    for item in range(
        1, ITEMS + 1
    ):  # the most clicked neighbours, weighted by their counts
        kept = sorted(counts[item].values(), reverse=True)[:neighbours]
        weights = sorted(dense[item - 1][dense[item - 1] > 0].tolist(), reverse=True)
        assert torch.allclose(
            torch.tensor(weights),
            torch.tensor([count / sum(kept) for count in kept]),
            atol=1e-6,
        )
    torch.manual_seed(0)
    table = torch.randn(ROWS, 3, dtype=torch.double, requires_grad=True)
    factor = torch.randn(ROWS, 3, dtype=torch.double)
    smoothed = graph.smoothed(table)
    expected = table + 0.5 * dense @ table
    assert torch.allclose(smoothed, expected, atol=1e-6)
    (gradient,) = torch.autograd.grad((smoothed * factor).sum(), table)
    assert torch.allclose(gradient, factor + 0.5 * dense.T @ factor, atol=1e-6)


def test_unused_places_at_the_end_of_the_lists_change_no_product() -> None:
    entries = (
        torch.tensor([4, 0, 4]),
        torch.tensor([1, 2, 5]),
        torch.tensor([0.5, 2.0, 1.0]),
    )
    matrices = [SparseMatrix(), SparseMatrix()]
    table = torch.arange(24.0).view(ROWS, 3).requires_grad_()
    for matrix, most in zip(matrices, (None, 8 * ITEMS), strict=True):
        matrix.fill(*entries, (ROWS, ROWS), most)
    assert [len(matrix.columns) for matrix in matrices] == [3, 6]
    exact, padded = (matrix.times(table) for matrix in matrices)
    assert torch.equal(exact, padded)
    assert exact[4].tolist() == (0.5 * table[1] + table[5]).tolist()
    gradients = [
        torch.autograd.grad(product.square().sum(), table)[0]
        for product in (exact, padded)
    ]
    assert torch.equal(*gradients)


def test_without_a_weight_nothing_is_counted() -> None:
    graph = CoClickGraph(0.0, neighbours=3, window=2)
    graph.count(*flat([[1, 2, 3]]), ITEMS)
    table = torch.randn(ROWS, 3)
    assert graph.smoothed(table) is table
