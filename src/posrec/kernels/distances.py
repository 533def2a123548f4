"""Shortest paths between all nodes of each session graph, along the clicks, one program for each session.

The algorithm is that of `nn/graph.py` on a CPU. The walk along the clicks keeps the distances from the present node
in registers, so that a click takes one load and one store of a row. Programs are of one warp: there are many sessions.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def distances_kernel(alias, lengths, steps, L, WIDE: tl.constexpr):
    session = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)
    inside = column < L
    length = tl.load(lengths + session)
    alias += session * L
    rows = steps + session * L * L + column  # of the first node; add L for the next
    for node in range(L):
        tl.store(rows + node * L, tl.where(column == node, 0.0, 2.0 * L), mask=inside)
    tl.debug_barrier()
    changed = 1
    while changed > 0:
        shorter = tl.zeros([WIDE], tl.int32)
        row = rows + tl.load(alias) * L
        now = tl.load(row, mask=inside, other=0.0)
        for click in range(1, 2 * length - 1):  # to the last click and back to the first
            position = tl.minimum(click, 2 * length - 2 - click)
            row = rows + tl.load(alias + position) * L
            before = tl.load(row, mask=inside, other=0.0)
            now = tl.minimum(before, now + 1)
            shorter += (now < before).to(tl.int32)
            tl.store(row, now, mask=inside)
            tl.debug_barrier()  # a node may be clicked again at once
        changed = tl.sum(shorter)


def distances(alias: Tensor, lengths: Tensor) -> Tensor:
    """`alias [B, L]`: the slot of the node clicked at each position -> [B, L, L]; 2 L where there is no path."""
    sessions, longest = alias.shape
    steps = torch.empty(sessions, longest, longest, device=alias.device)
    wide = max(32, triton.next_power_of_2(longest))
    # Not by `launch`: where kernels are only compiled, the distances must be right all the same.
    distances_kernel[(sessions,)](alias.contiguous(), lengths, steps, longest, wide, num_warps=1)
    return steps
