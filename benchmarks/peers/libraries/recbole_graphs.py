"""RecBole's session graphs by tensor operations.

RecBole's GC-SAN builds them in Python, session by session, while the GPU waits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Graphs = tuple[Tensor, Tensor, Tensor]


def session_graphs(clicks: Tensor) -> Graphs:
    """clicks [B, L], 0 after the last one -> node of each click [B, L], weights of the incoming and
    the outgoing edges [B, L, 2L], item of each node [B, L].

    As in RecBole, nodes are in the order of their items, and the padding is a node.
    """
    batch, longest = clicks.shape
    ordered, order = clicks.sort(dim=1)
    is_new = ordered.diff(dim=1, prepend=ordered[:, :1]) != 0
    node_of_ordered = is_new.cumsum(1)
    node = torch.empty_like(clicks).scatter(1, order, node_of_ordered)
    item = torch.zeros_like(clicks).scatter(1, node_of_ordered, ordered)
    # The element after the last edge takes what is no edge.
    edge = node[:, :-1] * longest + node[:, 1:]
    edge = torch.where(clicks[:, 1:] > 0, edge, longest**2)
    is_edge = torch.zeros(batch, longest**2 + 1, device=clicks.device)
    is_edge = is_edge.scatter(1, edge, 1.0)[:, :-1].view(batch, longest, longest)
    incoming = is_edge / is_edge.sum(1, keepdim=True).clamp(min=1)
    outgoing = is_edge / is_edge.sum(2, keepdim=True).clamp(min=1)
    return node, torch.cat([incoming.mT, outgoing], dim=2), item


def checked(by_recbole: Callable[[Tensor], Graphs]) -> Callable[[Tensor], Graphs]:
    """`session_graphs`, whose first result must equal RecBole's own."""
    remaining = [by_recbole]

    def graphs(clicks: Tensor) -> Graphs:
        result = session_graphs(clicks)
        if remaining:
            for ours, theirs in zip(result, remaining.pop()(clicks), strict=True):
                if not torch.equal(ours, theirs):
                    raise ValueError("the graphs of a batch are not RecBole's")
        return result

    return graphs
