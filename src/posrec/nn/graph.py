"""SessionGraph: the session graphs of a whole batch, built by tensor operations on the batch's device; anchor edges.

A node is a distinct item of a session. Its slot is the position of its first click, so items need no renumbering: in
the session a b a c the nodes are in slots 0 (a), 1 (b) and 3 (c), and slot 2 is empty. All tensors are [B, L] or
[B, L, L]; there is no loop over sessions, and the CPU never waits for a value from the device.

Anchor edges (section 4.3.2): every node v_t receives messages from the first item, N_in'(v_t) = N_in(v_t) + v_0 + v_*,
and from the last, N_out'(v_t) = N_out(v_t) + v_{l-1} + v_*, where v_* are the items clicked more than once. The weight
of an anchor edge is the distance between the two nodes on the undirected, unweighted graph; it is added to the weight
of an existing edge.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.nn.distances import all_distances


@dataclass(frozen=True)
class SessionGraph:
    """The graphs of B sessions, at most L nodes each."""

    alias: Tensor  # [B, L] the slot of the node clicked at each position (0 where there is no click)
    nodes: Tensor  # [B, L] True where a slot holds a node
    latest: Tensor  # [B, L] the position of a node's latest click; its first click is the slot itself
    repeated: Tensor  # [B, L] True for nodes clicked more than once
    edges: Tensor  # [B, L, L] edges[b, i, j]: how often j was clicked right after i
    distances: Tensor | None  # [B, L, L] on the undirected, unweighted graph; 0 for empty slots
    # [B, 2, L, L] the weights of messages, incoming and outgoing, if the model computes them; row: receiver
    weights: Tensor | None = None

    def last(self, lengths: Tensor) -> Tensor:
        """[B] the slot of the last click's node."""
        return self.alias.gather(1, (lengths - 1)[:, None])[:, 0]

    def rows(self, start: int, end: int) -> "SessionGraph":
        """The graphs of sessions start..end-1, as views."""
        parts = {name: None if value is None else value[start:end] for name, value in vars(self).items()}
        return SessionGraph(**parts)  # type: ignore[arg-type]


def build_graph(
    items: Tensor, lengths: Tensor, with_distances: bool = True, longest: int | None = None
) -> SessionGraph:
    """`items [B, L]` padded on the right, `lengths [B]`; `longest` bounds the lengths if L is not known (export)."""
    width = items.shape[1]
    position = torch.arange(width, device=items.device)
    mask = position < lengths[:, None]
    marked = torch.where(mask, items, -1 - position)  # an empty slot equals no other one
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
    edges = torch.zeros(mask.shape[0], width * width, device=mask.device).scatter_add(1, pair, follows)
    edges = edges.view(-1, width, width)
    distances = all_distances(edges, nodes, alias, lengths, longest) if with_distances else None
    return SessionGraph(alias, nodes, latest, repeated, edges, distances)


def neighbours(edges: Tensor) -> tuple[Tensor, Tensor]:
    """(incoming, outgoing) [B, L, L], row: the node that receives messages. `edges[b, i, j]` leads from i to j."""
    return edges.transpose(1, 2), edges


def add_anchors(
    incoming: Tensor, outgoing: Tensor, distances: Tensor, repeated: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """Add anchor edges. `repeated` [B, L] marks v_*, `last` [B] is the last click's slot; the first click's is 0."""
    slot = torch.arange(repeated.shape[1], device=repeated.device)
    first_or_repeated = (slot == 0) | repeated  # [B, L]
    last_or_repeated = (slot == last[:, None]) | repeated
    return incoming + distances * first_or_repeated[:, None, :], outgoing + distances * last_or_repeated[:, None, :]


def message_weights(edges: Tensor, distances: Tensor | None, repeated: Tensor, last: Tensor, normalize: bool) -> Tensor:
    """A gated graph layer's weights, incoming and outgoing, [B, 2, L, L]; with anchors if `distances` are given.

    Anchors are added before weights are normalised, so the weights of a node's messages still sum to one.
    """
    incoming, outgoing = neighbours(edges)
    if distances is not None:
        incoming, outgoing = add_anchors(incoming, outgoing, distances, repeated, last)
    weights = torch.stack([incoming, outgoing], dim=1)
    return normalised(weights) if normalize else weights


def normalised(weights: Tensor) -> Tensor:
    """Divide each row by its sum; a row of zeros stays as it is."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)
