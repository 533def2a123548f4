"""The session graph of a batch against networkx, one session at a time."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
import torch
from hypothesis import given, settings, strategies as st

from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SHORT_SESSION, SessionGraph

sessions = st.lists(st.integers(1, 6), min_size=1, max_size=14)
batches = st.lists(sessions, min_size=1, max_size=6)


def check(session: list[int], row: int, graph: SessionGraph) -> None:
    """Compare one row of a batch's graph with a graph built click by click."""
    first = {item: session.index(item) for item in session}
    latest = {item: len(session) - 1 - session[::-1].index(item) for item in session}
    width = graph.alias.shape[1]
    aliases = [first[item] for item in session]
    assert graph.alias[row, : len(session)].tolist() == aliases
    assert graph.nodes[row].nonzero()[:, 0].tolist() == sorted(first.values())
    plain = nx.Graph()
    edges = torch.zeros(width, width)
    plain.add_nodes_from(first.values())
    for before, after in pairwise(session):
        edges[first[before], first[after]] += 1
        plain.add_edge(first[before], first[after])
    assert torch.equal(graph.edges[row], edges)
    steps = dict(nx.all_pairs_shortest_path_length(plain))
    for item, slot in first.items():
        assert graph.latest[row, slot] == latest[item]
        assert bool(graph.repeated[row, slot]) == (session.count(item) > 1)
        for other in first.values():
            assert graph.distances[row, slot, other] == steps[slot][other]
    empty = ~graph.nodes[row]
    assert graph.distances[row][empty].sum() == 0
    assert graph.distances[row][:, empty].sum() == 0
    assert not graph.repeated[row][empty].any()


@given(batches, st.integers(0, 30))
def test_distances_by_doubling_are_the_same(batch: list[list[int]], more: int) -> None:
    plain = SessionBatch.of(batch)
    longest = max(map(len, batch)) + more
    doubled = replace(plain, longest=longest).build_graph()
    assert doubled.distances.tolist() == plain.build_graph().distances.tolist()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 33])
def test_a_path_of_the_greatest_length_is_found_by_doubling(length: int) -> None:
    batch = replace(SessionBatch.of([list(range(1, length + 1))]), longest=length)
    assert batch.build_graph().distances[0, 0].tolist() == list(range(length))


def test_long_sessions_agree_with_networkx() -> None:
    there_and_back = [*range(1, 40), *range(38, 0, -1)]
    crossing = [number * 7 % 41 + 1 for number in range(60)]
    crossing += [number * 11 % 41 + 1 for number in range(30)]
    batch = [there_and_back, crossing, [5], [*range(60, 0, -1), 30, 1, 45, 2, 30]]
    graph = SessionBatch.of(batch).build_graph()
    assert graph.alias.shape[1] > SHORT_SESSION
    for row, session in enumerate(batch):
        check(session, row, graph)


@settings(max_examples=150)
@given(batches, st.integers(0, 3))
def test_graph_agrees_with_networkx(batch: list[list[int]], padding: int) -> None:
    trimmed = SessionBatch.of(batch)
    items = torch.nn.functional.pad(trimmed.items, (0, padding))
    graph = SessionBatch(items, trimmed.lengths).build_graph()
    for row, session in enumerate(batch):
        check(session, row, graph)


def test_graph_by_hand() -> None:
    """a b a c a: a in slot 0, b in 1, c in 3; a -> b -> a -> c -> a."""
    graph = SessionBatch.of([[7, 5, 7, 9, 7]]).build_graph()
    assert graph.alias.tolist() == [[0, 1, 0, 3, 0]]
    assert graph.nodes.tolist() == [[True, True, False, True, False]]
    assert graph.latest[0, [0, 1, 3]].tolist() == [4, 1, 3]
    assert graph.repeated.tolist() == [[True, False, False, False, False]]
    assert graph.edges[0, 0].tolist() == [0, 1, 0, 1, 0]
    assert graph.edges[0, :, 0].tolist() == [0, 1, 0, 1, 0]
    assert graph.distances is not None
    assert graph.distances[0, 1, [0, 1, 3]].tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    "session", [[4], [4] * 200, list(range(1, 201))], ids=["one", "one item", "long"]
)
def test_extremes(session: list[int]) -> None:
    graph = SessionBatch.of([session]).build_graph()
    check(session, 0, graph)


def test_rows_are_the_graphs_of_those_sessions() -> None:
    sessions = [[1, 2], [3, 3, 4], [5]]
    graph = SessionBatch.of(sessions).build_graph().rows(1, 3)
    for row, session in enumerate(sessions[1:]):
        check(session, row, graph)


def test_distances_can_be_left_out() -> None:
    assert SessionBatch.of([[1, 2]]).build_graph(with_distances=False).distances is None
