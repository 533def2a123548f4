"""Anchor edges of the position-aware graph network (section 4.3.2).

Every node v_t receives from the first item, N_in'(v_t) = N_in(v_t) + v_0 + v_*, and from the last,
N_out'(v_t) = N_out(v_t) + v_{l-1} + v_*, where v_* are the items clicked more than once. The weight of an anchor edge
is the distance between the two nodes on the undirected, unweighted graph; it adds to an edge that is there already.
"""

import torch
from torch import Tensor


def neighbours(edges: Tensor) -> tuple[Tensor, Tensor]:
    """(incoming, outgoing) [B, L, L], row: who receives. `edges[b, i, j]` leads from i to j."""
    return edges.transpose(1, 2), edges


def add_anchors(
    incoming: Tensor, outgoing: Tensor, distances: Tensor, repeated: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """`repeated` [B, L] marks v_*, `last` [B] is the slot of the last click's node; the first click's is slot 0."""
    slot = torch.arange(repeated.shape[1], device=repeated.device)
    first_or_repeated = (slot == 0) | repeated  # [B, L]
    last_or_repeated = (slot == last[:, None]) | repeated
    return incoming + distances * first_or_repeated[:, None, :], outgoing + distances * last_or_repeated[:, None, :]


def message_weights(edges: Tensor, distances: Tensor | None, repeated: Tensor, last: Tensor, normalize: bool) -> Tensor:
    """A gated graph layer's weights, incoming and outgoing, [B, 2, L, L]; with anchors where `distances` are given.

    Anchors are added to the counts of the edges, and only then is anything divided: what a node hears from each side
    still adds up to one.
    """
    incoming, outgoing = neighbours(edges)
    if distances is not None:
        incoming, outgoing = add_anchors(incoming, outgoing, distances, repeated, last)
    weights = torch.stack([incoming, outgoing], dim=1)
    return normalised(weights) if normalize else weights


def normalised(weights: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)
