"""SessionGraph: the session graphs of a whole batch, built by tensor operations on the batch's
device; anchor edges.

A node is a distinct item of a session. Its slot is the position of its first click, so items need
no renumbering: in the session a b a c the nodes are in slots 0 (a), 1 (b) and 3 (c), and slot 2 is
empty. All tensors are [B, L] or [B, L, L]; there is no loop over sessions, and the CPU never waits
for a value from the device.

Anchor edges (section 4.3.2): every node v_t receives messages from the first item, N_in'(v_t) =
N_in(v_t) + v_0 + v_*, and from the last, N_out'(v_t) = N_out(v_t) + v_{l-1} + v_*, where v_* are
the items clicked more than once. The weight of an anchor edge is the distance between the two nodes
on the undirected, unweighted graph; it is added to the weight of an existing edge."""

from dataclasses import dataclass

import torch
from torch import Tensor

SHORT_SESSION = 32  # clicks; up to here one byte holds the sum of two paths


@dataclass(frozen=True)
class SessionGraph:
    """The graphs of B sessions, at most L nodes each."""

    alias: Tensor  # [B, L] the slot of the node clicked at each position (0 where there is no click)
    nodes: Tensor  # [B, L] True where a slot holds a node
    latest: Tensor  # [B, L] the position of a node's latest click; its first click is the slot itself
    repeated: Tensor  # [B, L] True for nodes clicked more than once
    edges: Tensor  # [B, L, L] edges[b, i, j]: how often j was clicked right after i
    distances: (
        Tensor | None
    )  # [B, L, L] on the undirected, unweighted graph; 0 for empty slots
    # [B, 2, L, L] the weights of messages, incoming and outgoing, if the model computes them; row:
    # receiver
    weights: Tensor | None = None

    def last(self, lengths: Tensor) -> Tensor:
        """[B] the slot of the last click's node."""
        return self.alias.gather(1, (lengths - 1)[:, None])[:, 0]

    def rows(self, start: int, end: int) -> "SessionGraph":
        """The graphs of sessions start..end-1, as views."""
        parts = {
            name: None if value is None else value[start:end]
            for name, value in vars(self).items()
        }
        return SessionGraph(**parts)  # type: ignore[arg-type]


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
    marked = torch.where(
        mask, items, -1 - position
    )  # an empty slot equals no other one
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
    edges = torch.zeros(mask.shape[0], width * width, device=mask.device).scatter_add(
        1, pair, follows
    )
    edges = edges.view(-1, width, width)
    distances = all_distances(edges, nodes, longest) if with_distances else None
    return SessionGraph(alias, nodes, latest, repeated, edges, distances)


def add_anchors(
    incoming: Tensor, outgoing: Tensor, graph: SessionGraph, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Add anchor edges to the weights [B, L, L] of messages along incoming and outgoing edges, row:
    receiver."""
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

    Every node can be reached from the first click, so all distances are finite and below the
    session's length L. They are found by the Floyd-Warshall algorithm, in L passes over [B, L, L].
    An exported model does not know L, so the number of its operations must not depend on it: with
    `longest`, a bound of the lengths, paths are doubled instead."""
    if longest is not None:
        steps = by_doubling(single_steps(edges, 2 * longest), longest)
    else:
        steps = floyd_warshall(single_steps(edges, 2 * edges.shape[1]))
    return steps * (nodes[:, :, None] & nodes[:, None, :])


def single_steps(edges: Tensor, unreachable: int) -> Tensor:
    """Distances over at most one edge; all others are `unreachable`."""
    linked = (edges + edges.transpose(1, 2)) > 0
    slot = torch.arange(edges.shape[1], device=edges.device)
    return torch.where(linked, 1.0, float(unreachable)).masked_fill(
        slot == slot[:, None], 0.0
    )


def floyd_warshall(steps: Tensor) -> Tensor:
    """Sessions are the last dimension, and numbers have one byte where it suffices, so that one
    instruction computes many of them."""
    dtype = torch.uint8 if steps.shape[1] <= SHORT_SESSION else torch.int16
    paths = steps.to(dtype).permute(1, 2, 0).contiguous()  # [L, L, B]
    for via in range(len(paths)):
        torch.minimum(paths, paths[:, via, None] + paths[via], out=paths)
    return paths.permute(2, 0, 1).to(steps.dtype)


def by_doubling(steps: Tensor, longest: int) -> Tensor:
    """Each iteration doubles the length of the paths; it takes L times the memory of the distances."""
    for _ in range(max(0, longest - 2).bit_length()):
        steps = (steps[:, :, :, None] + steps[:, None, :, :]).amin(2)
    return steps
