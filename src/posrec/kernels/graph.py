"""The session graphs of a batch with their message weights, one program of one warp for each session.

It computes what `nn/graph.py` computes by about thirty tensor operations, for sessions whose [L, L] matrices fit into a
warp's registers. Distances are found by the algorithm of Floyd and Warshall: node by node, the paths that lead over it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 32  # clicks of a session


@triton.jit
def value_at(values, slot, at):
    return tl.sum(tl.where(slot == at, values, 0), 0)


@triton.jit
def graph_kernel(
    items, lengths, alias, nodes, latest, repeated, edges, distances, weights, width, L: tl.constexpr,
    ANCHORS: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    session, slot = tl.program_id(0).to(tl.int64), tl.arange(0, L)
    row, column = slot[:, None], slot[None, :]
    length = tl.load(lengths + session).to(tl.int32)
    inside = slot < length
    item = tl.load(items + session * width + slot, mask=inside, other=0)
    same = (item[:, None] == item[None, :]) & inside[:, None] & inside[None, :]
    node = tl.where(inside, tl.min(tl.where(same, column, L), 1), 0)  # of each click
    last_click = tl.max(tl.where(same, column, 0), 1)
    is_node = inside & (node == slot)
    is_repeated = is_node & (last_click > slot)
    place = session * width + slot
    tl.store(alias + place, node.to(tl.int64), mask=slot < width)
    tl.store(nodes + place, is_node, mask=slot < width)
    tl.store(latest + place, last_click.to(tl.int64), mask=slot < width)
    tl.store(repeated + place, is_repeated, mask=slot < width)
    # One edge for each pair of neighbouring clicks. Messages go along it (incoming) and back (outgoing).
    incoming, outgoing = tl.zeros([L, L], tl.float32), tl.zeros([L, L], tl.float32)
    before = value_at(node, slot, 0)
    for click in range(1, length):
        after = value_at(node, slot, click)
        outgoing += ((row == before) & (column == after)).to(tl.float32)
        incoming += ((row == after) & (column == before)).to(tl.float32)
        before = after
    matrix = session * width * width + row * width + column
    in_matrix = (row < width) & (column < width)
    tl.store(edges + matrix, outgoing, mask=in_matrix)
    if ANCHORS:
        path = tl.where(row == column, 0.0, tl.where(incoming + outgoing > 0, 1.0, 2.0 * L))
        for via in range(0, length):
            from_via = tl.sum(tl.where(row == via, path, 0.0), 0)
            path = tl.minimum(path, from_via[:, None] + from_via[None, :])
        path = tl.where(is_node[:, None] & is_node[None, :], path, 0.0)
        tl.store(distances + matrix, path, mask=in_matrix)
        incoming += tl.where((is_repeated | (slot == 0))[None, :], path, 0.0)
        outgoing += tl.where((is_repeated | (slot == before))[None, :], path, 0.0)  # `before` is the last click's now
    if NORMALIZE:
        incoming /= tl.maximum(tl.sum(incoming, 1), 1.0)[:, None]
        outgoing /= tl.maximum(tl.sum(outgoing, 1), 1.0)[:, None]
    matrix += session * width * width  # two matrices for each session
    tl.store(weights + matrix, incoming, mask=in_matrix)
    tl.store(weights + matrix + width * width, outgoing, mask=in_matrix)


def graphs(items: Tensor, lengths: Tensor, anchors: bool, normalize: bool) -> tuple[Tensor, ...]:
    """The fields of a `SessionGraph` for `items [B, L]`, in their order; distances are undefined without anchors."""
    items = items.contiguous()
    sessions, width = items.shape
    # Tensors of their own begin at addresses that are equally aligned for every number of sessions.
    alias, latest = torch.empty_like(items), torch.empty_like(items)
    nodes, repeated = torch.empty_like(items, dtype=torch.bool), torch.empty_like(items, dtype=torch.bool)
    edges, distances = (torch.empty(sessions, width, width, device=items.device) for _ in range(2))
    weights = torch.empty(sessions, 2, width, width, device=items.device)
    found = (alias, nodes, latest, repeated, edges, distances, weights)
    # Not by `launch`: where kernels are only compiled, the graphs must be right all the same.
    graph_kernel[(sessions,)](
        items, lengths, *found, width, max(16, triton.next_power_of_2(width)), anchors, normalize,
        num_warps=1,
    )  # fmt: skip
    return found
