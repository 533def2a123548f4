"""Shortest paths between all nodes of each session graph, undirected and unweighted.

Every node can be reached from the first click, so all distances are finite and below the session's length L. There are
three ways, all exact:

- Floyd-Warshall, for short sessions, and for all on a GPU: L passes over [B, L, L].
- Along the clicks, for long sessions on a CPU. The session is a walk through its graph, so going along it once forwards
  and once backwards finds most paths: the distances of a node are those of its neighbour plus one. This is repeated
  until nothing changes, two or three times in real sessions. It is the Bellman-Ford algorithm with Yen's order of the
  edges, L row operations for each direction, so that time grows with the square of L.
- Doubling, for export: the number of operations must not depend on L, which an exported model does not know.
"""

from itertools import pairwise

import torch
from torch import Tensor

SHORT = 32  # clicks; up to here Floyd-Warshall is faster on a CPU


def all_distances(edges: Tensor, nodes: Tensor, alias: Tensor, lengths: Tensor, longest: int | None = None) -> Tensor:
    """[B, L, L]; 0 for empty slots. `longest` bounds the lengths where L is not known (export)."""
    width = edges.shape[1]
    if longest is not None:
        steps = by_doubling(single_steps(edges, 2 * longest), longest)
    elif edges.is_cuda or width <= SHORT:
        steps = floyd_warshall(single_steps(edges, 2 * width))
    else:
        steps = along_the_clicks(alias, lengths)
    return steps * (nodes[:, :, None] & nodes[:, None, :])


def single_steps(edges: Tensor, unreachable: int) -> Tensor:
    """Distances over at most one edge; all others are `unreachable`."""
    linked = (edges + edges.transpose(1, 2)) > 0
    slot = torch.arange(edges.shape[1], device=edges.device)
    return torch.where(linked, 1.0, float(unreachable)).masked_fill(slot == slot[:, None], 0.0)


def floyd_warshall(steps: Tensor) -> Tensor:
    """Sessions are the last dimension, and numbers have one byte where it suffices, so that one instruction computes
    many of them."""
    dtype = torch.uint8 if steps.shape[1] <= SHORT else torch.int16
    paths = steps.to(dtype).permute(1, 2, 0).contiguous()  # [L, L, B]
    for via in range(len(paths)):
        torch.minimum(paths, paths[:, via, None] + paths[via], out=paths)
    return paths.permute(2, 0, 1).to(steps.dtype)


def by_doubling(steps: Tensor, longest: int) -> Tensor:
    """Each iteration doubles the length of the paths; it takes L times the memory of the distances."""
    for _ in range(max(0, longest - 2).bit_length()):
        steps = (steps[:, :, :, None] + steps[:, None, :, :]).amin(2)
    return steps


def along_the_clicks(alias: Tensor, lengths: Tensor) -> Tensor:
    """`alias [B, L]`: the slot of the node clicked at each position."""
    batch, width = alias.shape
    steps = torch.full((batch, width, width), 2 * width, dtype=torch.int16)
    steps.diagonal(dim1=1, dim2=2).zero_()
    rows = steps.view(batch * width, width)
    # Past the end of a session its walk stays where it is, which changes nothing.
    position = torch.arange(width).clamp(max=(lengths - 1).clamp(min=0)[:, None])
    walk = (alias.gather(1, position) + torch.arange(0, batch * width, width)[:, None]).T.contiguous()
    pairs = list(pairwise(walk))
    before = torch.full_like(rows, -1)
    while not torch.equal(before, rows):
        before.copy_(rows)
        for here, there in pairs:
            relax(rows, here, there)
        for here, there in reversed(pairs):
            relax(rows, there, here)
    return steps.float()


def relax(rows: Tensor, here: Tensor, there: Tensor) -> None:
    """What can be reached from `here` can be reached from its neighbour `there` with one step more."""
    over = rows.index_select(0, here).add_(1)
    rows[there] = torch.minimum(rows.index_select(0, there), over)  # for int16 faster than index_copy_
