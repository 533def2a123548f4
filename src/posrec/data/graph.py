"""SessionGraph: the session graphs of a whole batch, by tensor operations on the batch's device.

A node is a distinct item of a session. It lives in the slot of its first click, so slots and positions are the same
numbers and nothing has to be renumbered: in the session a b a c the nodes stand in slots 0 (a), 1 (b) and 3 (c), and
slot 2 is empty. Everything here is [B, L] or [B, L, L]; no loop over sessions, and no value is read back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.data.batch import SessionBatch


@dataclass(frozen=True)
class SessionGraph:
    """The graphs of B sessions, at most L nodes each."""

    alias: Tensor  # [B, L] the slot of the node clicked at each position (0 where there is no click)
    nodes: Tensor  # [B, L] True where a slot holds a node
    latest: Tensor  # [B, L] the position of a node's latest click; its first click is the slot itself
    repeated: Tensor  # [B, L] True for nodes clicked more than once
    edges: Tensor  # [B, L, L] edges[b, i, j]: how often j was clicked right after i
    distances: Tensor | None  # [B, L, L] steps between nodes, edges taken undirected and unweighted; 0 where not nodes
    weights: Tensor | None = (
        None  # [B, 2, L, L] what a model makes of the edges: (incoming, outgoing), row: who receives
    )

    def last(self, lengths: Tensor) -> Tensor:
        """[B] the slot of the last click's node."""
        return self.alias.gather(1, (lengths - 1)[:, None])[:, 0]

    def rows(self, start: int, end: int) -> "SessionGraph":
        """The graphs of sessions start..end-1; views."""
        parts = {name: None if value is None else value[start:end] for name, value in vars(self).items()}
        return SessionGraph(**parts)  # type: ignore[arg-type]


def build_graph(batch: SessionBatch, with_distances: bool = True) -> SessionGraph:
    mask = batch.mask
    width = batch.items.shape[1]
    position = torch.arange(width, device=batch.items.device)
    same = (batch.items[:, :, None] == batch.items[:, None, :]) & mask[:, None, :] & mask[:, :, None]  # [B, L, L]
    alias = torch.where(same, position, width).amin(2).masked_fill(~mask, 0)
    nodes = (alias == position) & mask
    latest = torch.where(same, position, 0).amax(2)
    repeated = nodes & (latest > position)
    # One edge for each pair of neighbouring clicks; where a session has ended the edge counts nothing.
    follows = mask[:, 1:].float()
    pair = alias[:, :-1] * width + alias[:, 1:]
    edges = torch.zeros(mask.shape[0], width * width, device=mask.device).scatter_add(1, pair, follows)
    edges = edges.view(-1, width, width)
    distances = all_distances(edges, nodes, batch.longest) if with_distances else None
    return SessionGraph(alias, nodes, latest, repeated, edges, distances)


def all_distances(edges: Tensor, nodes: Tensor, longest: int | None = None) -> Tensor:
    """Shortest paths between all nodes, for all sessions at once: by Floyd and Warshall, node by node.

    The first click reaches every node of its session, so all distances are finite and below L. Where L is not known
    beforehand the steps can't be counted by it: then paths of twice the length are found each time, of up to `longest`
    clicks. That takes few operations but L times the memory, so it is for exported models.
    """
    width = edges.shape[1]
    linked = (edges + edges.transpose(1, 2)) > 0
    steps = torch.where(linked, 1.0, float(2 * (width if longest is None else longest)))
    slot = torch.arange(width, device=edges.device)
    steps = steps.masked_fill(slot == slot[:, None], 0.0)
    if longest is None:
        for via in range(width):
            steps = torch.minimum(steps, steps[:, :, via, None] + steps[:, None, via, :])
    else:
        for _ in range(max(0, longest - 2).bit_length()):
            steps = (steps[:, :, :, None] + steps[:, None, :, :]).amin(2)
    return steps * (nodes[:, :, None] & nodes[:, None, :])
