"""SessionGraph: the session graphs of a batch, built by tensor operations on its device.

A node is a distinct item of a session. Its slot is the position of its first click, so items need
no renumbering: in the session a b a c the nodes are in slots 0 (a), 1 (b) and 3 (c), and slot 2 is
empty. There is no loop over sessions, and the CPU never waits for a value from the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

SHORT_SESSION = 32  # clicks; up to here one byte holds the sum of two paths


@dataclass(frozen=True)
class SessionGraph:
    """The graphs of B sessions, at most L nodes each."""

    alias: Tensor  # [B, L] the slot of the node clicked at each position; 0 for padding
    nodes: Tensor  # [B, L] True where a slot holds a node
    latest: Tensor  # [B, L] the position of a node's latest click; its first is the slot itself
    repeated: Tensor  # [B, L] True for nodes clicked more than once
    edges: Tensor  # [B, L, L] edges[b, i, j]: how often j was clicked right after i
    # [B, L, L] on the undirected, unweighted graph; 0 for empty slots
    distances: Tensor | None
    # [B, 2, L, L] of messages, incoming and outgoing, if the model computes them; row: receiver
    weights: Tensor | None = None

    def last(self, lengths: Tensor) -> Tensor:
        """[B] the slot of the last click's node."""
        return self.alias.gather(1, (lengths - 1)[:, None])[:, 0]

    def rows(self, start: int, end: int) -> "SessionGraph":
        """The graphs of sessions start..end-1, as views."""
        views = {
            name: None if tensor is None else tensor[start:end]
            for name, tensor in vars(self).items()
        }
        return SessionGraph(**views)  # type: ignore[arg-type]


def build_graph(
    items: Tensor,
    lengths: Tensor,
    with_distances: bool = True,
    longest: int | None = None,
) -> SessionGraph:
    """`items [B, L]` padded on the right, `lengths [B]`; `longest` bounds the lengths if L is not
    known (export)."""
    width = items.shape[1]
    position = torch.arange(width, device=items.device)
    mask = position < lengths[:, None]
    marked = torch.where(mask, items, -1 - position)  # padding equals no other slot
    same = marked[:, :, None] == marked[:, None, :]  # [B, L, L]
    # The arrays [B, L, L] are most of the work here, so their numbers are short.
    short = position.int()
    alias = torch.where(same, short, width).amin(2).long().masked_fill(~mask, 0)
    nodes = (alias == position) & mask
    latest = torch.where(same, short, 0).amax(2).long().masked_fill(~mask, 0)
    repeated = nodes & (latest > position)
    # One edge for each pair of neighbouring clicks; pairs after the session's end have weight 0.
    follows = mask[:, 1:].float()
    pair = alias[:, :-1] * width + alias[:, 1:]
    edges = torch.zeros(mask.shape[0], width * width, device=mask.device)
    edges = edges.scatter_add(1, pair, follows).view(-1, width, width)
    distances = all_distances(edges, nodes, longest) if with_distances else None
    return SessionGraph(alias, nodes, latest, repeated, edges, distances)


def add_anchors(
    incoming: Tensor, outgoing: Tensor, graph: SessionGraph, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Add anchor edges to the weights [B, L, L] of messages along incoming and outgoing edges, row:
    receiver.

    Section 4.3.2: every node v_t receives messages from the first item, N_in'(v_t) = N_in(v_t) +
    v_0 + v_*, and from the last, N_out'(v_t) = N_out(v_t) + v_{l-1} + v_*, where v_* are the items
    clicked more than once. The weight of an anchor edge, which is added to that of an existing
    edge, is the distance between the two nodes."""
    assert graph.distances is not None
    slot = torch.arange(graph.nodes.shape[1], device=lengths.device)
    first_or_repeated = (slot == 0) | graph.repeated  # [B, L]
    last_or_repeated = (slot == graph.last(lengths)[:, None]) | graph.repeated
    return (
        incoming + graph.distances * first_or_repeated[:, None, :],
        outgoing + graph.distances * last_or_repeated[:, None, :],
    )


def all_distances(edges: Tensor, nodes: Tensor, longest: int | None = None) -> Tensor:
    """Shortest paths between all nodes of each graph, undirected and unweighted, [B, L, L]; 0 for
    empty slots.

    Every node can be reached from the first click, so all distances are below L. Floyd and
    Warshall's algorithm takes L passes over [B, L, L]; an exported model does not know L, and with
    `longest`, an upper bound on the lengths, doubles the paths instead."""
    unreachable = 2.0 * (longest or edges.shape[1])
    linked = (edges + edges.transpose(1, 2)) > 0
    slot = torch.arange(edges.shape[1], device=edges.device)
    # Paths of at most one edge.
    paths = torch.where(linked, 1.0, unreachable)
    paths = paths.masked_fill(slot == slot[:, None], 0.0)
    paths = floyd_warshall(paths) if longest is None else by_doubling(paths, longest)
    return paths * (nodes[:, :, None] & nodes[:, None, :])


def floyd_warshall(paths: Tensor) -> Tensor:
    """Sessions are the last dimension, and numbers have one byte where it suffices, so that one
    instruction computes many of them."""
    dtype = torch.uint8 if paths.shape[1] <= SHORT_SESSION else torch.int16
    shortest = paths.to(dtype).permute(1, 2, 0).contiguous()  # [L, L, B]
    for via in range(len(shortest)):
        through = shortest[:, via, None] + shortest[via]
        torch.minimum(shortest, through, out=shortest)
    return shortest.permute(2, 0, 1).to(paths.dtype)


def by_doubling(paths: Tensor, longest: int) -> Tensor:
    """Each iteration doubles the edges of the paths, with L times the memory of the distances."""
    for _ in range(max(0, longest - 2).bit_length()):
        paths = (paths[:, :, :, None] + paths[:, None, :, :]).amin(2)
    return paths
