"""The repeat part of posrec-plus: how likely each of a session's own items is clicked again.

For each node t, with f its position from the front (of its earliest click), b its position from the back (of its
latest) and c the number of its clicks:

    u_t = relu(W_x x_t + W_H H_t + W_h h + P_f[f] + P_b[b] + P_c[c] + bias)
    (rho_t, delta_t) = W_u u_t + bias;    r = softmax of rho over the session's nodes
    g   = softmax(W_2 relu(W_1 [h || v] + bias) + bias)
    v   = clicks and nodes of the session (log(1 + .) / 3), whether the last item was clicked before, logsumexp(rho) / 5
"""

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import learned_table, look_up
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.matmul import linear
from posrec.nn.own_items import NONE, OwnItems
from posrec.nn.packing import Packing

MOST_CLICKS = 5  # on one item of a session; more count as so many
MOST_RAISED = 10.0  # the largest |delta|


class RepeatPart(nn.Module):
    """rho, delta and the gate; see the top of the file."""

    def __init__(self, d: int, width: int, max_length: int) -> None:
        super().__init__()
        self.of_item, self.of_state, self.of_session = (
            nn.Linear(d, width, bias) for bias in (True, False, False)
        )  # fmt: skip
        self.forward_position, self.backward_position, self.clicks = (
            learned_table(rows, width) for rows in (max_length, max_length, MOST_CLICKS + 1)
        )
        self.out = nn.Linear(width, 2)
        self.gate = nn.Sequential(nn.Linear(d + 4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(
        self, batch: SessionBatch, graph: SessionGraph, packing: Packing, numbers: Tensor, products: Tensor,
        x: Tensor, hidden: Tensor, h: Tensor,
    ) -> OwnItems:  # fmt: skip
        """numbers [T] of the nodes' items (0: unknown), their products z [T], x and H [T, d], h [B, d]."""
        mask = batch.mask
        clicks = torch.zeros_like(graph.alias).scatter_add(1, graph.alias, mask.long())  # [B, L] on a slot's node
        forward, backward = positions(batch, graph)
        u = (
            linear(self.of_item, x) + linear(self.of_state, hidden) + of_owner(linear(self.of_session, h), packing)
            + look_up(self.forward_position, packing.to_rows(forward))
            + look_up(self.backward_position, packing.to_rows(backward))
            + look_up(self.clicks, packing.to_rows(clicks))
        )  # fmt: skip
        rho, delta, z = packing.to_slots(torch.cat([linear(self.out, u.relu()), products[:, None]], 1)).unbind(
            2
        )  # [B, L]
        items = torch.where(graph.nodes, packing.to_slots(numbers), 0)
        rho = torch.where(items > 0, rho, NONE)
        again = clicks.gather(1, graph.last(batch.lengths)[:, None]) > 1  # [B, 1]
        counts = torch.stack([batch.lengths, graph.nodes.sum(1)], 1).to(h.dtype).log1p() / 3
        strength = rho.logsumexp(1, keepdim=True)
        features = torch.cat([counts, again.to(h.dtype), strength.clamp(min=-20) / 5], 1)
        logits = self.gate(torch.cat([h, features], 1))  # [B, 2]
        nothing = torch.where((items > 0).any(1), 0.0, NONE)  # no item to repeat
        g = torch.stack([logits[:, 0] + nothing, logits[:, 1]], 1).log_softmax(1)
        repeat = g[:, :1] + rho - strength
        delta = delta.clamp(-MOST_RAISED, MOST_RAISED)
        return OwnItems(items, z, delta, repeat, g[:, 1])


def positions(batch: SessionBatch, graph: SessionGraph) -> tuple[Tensor, Tensor]:
    """Of each node, [B, L]: its earliest click counted from the front, its latest counted from the back."""
    slot = torch.arange(batch.items.shape[1], device=batch.items.device).expand_as(batch.items)
    return slot, batch.lengths[:, None] - 1 - graph.latest


def owner(packing: Packing) -> Tensor:
    """[T] the session of each row."""
    return packing.slot_of_row // packing.longest


def of_owner(of_sessions: Tensor, packing: Packing) -> Tensor:
    """[B, ...] -> [T, ...] for each row what its session has.

    Not by `of_sessions[owner(packing)]`: on a CPU several threads add up the gradient of that, in any order, and two
    trainings would not end with the same bits.
    """
    return of_sessions.index_select(0, owner(packing))
