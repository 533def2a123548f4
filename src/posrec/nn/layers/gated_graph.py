"""The gated graph layer of PosRec, SR-GNN and GC-SAN: messages in both directions, Eq. (7), and a
GRU update, Eq. (8).

m_t  = sum_{t'} A_in[t, t'] x_{t'} W_in  ||  sum_{t'} A_out[t, t'] x_{t'} W_out
x'_t = GRU(x_t, m_t)
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph, add_anchors
from posrec.nn.packing import Packing, constants


def message_graph(batch: SessionBatch, anchors: bool, normalize: bool) -> SessionGraph:
    """The session graphs of a batch with the message weights A_in and A_out of Eq. (7). Anchors are
    added before a node's weights are divided by their sum, so they still sum to one."""
    graph = batch.build_graph(with_distances=anchors)
    # row: the node that receives
    incoming = graph.edges.transpose(1, 2)
    outgoing = graph.edges
    if anchors:
        incoming, outgoing = add_anchors(incoming, outgoing, graph, batch.lengths)
    weights = torch.stack([incoming, outgoing], dim=1)
    if normalize:
        # A row of zeros stays as it is.
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
    return replace(graph, weights=weights)


class GatedGraph(nn.Module):
    """x [T, d], weights [B, 2, L, L] (incoming and outgoing; row: receiver, column: sender) -> x'
    [T, d]."""

    def __init__(self, d: int) -> None:
        super().__init__()
        # W_in || W_out || the GRU's three gates, in one product
        self.from_node = nn.Linear(d, 5 * d)
        self.from_message = nn.Linear(2 * d, 3 * d)
        self.d = d

    def forward(self, x: Tensor, weights: Tensor, packing: Packing) -> Tensor:
        projected = self.from_node(x)
        sent = projected[:, : 2 * self.d]
        gates = projected[:, 2 * self.d :]
        from_message = self.from_message(messages(sent, weights, packing))
        return gru_update(x, gates, from_message)


def gru_update(x: Tensor, gates: Tensor, from_message: Tensor) -> Tensor:
    """Eq. (8): x [T, d], and what x and the message add to the three gates, [T, 3d] each -> x'
    [T, d]."""
    (d,) = constants(x.shape[-1:])
    both_m, new_m = torch.split(from_message, [2 * d, d], dim=-1)
    both_x, new_x = torch.split(gates, [2 * d, d], dim=-1)
    reset, update = torch.split(torch.sigmoid(both_m + both_x), d, dim=-1)
    new = torch.tanh(new_m + reset * new_x)
    return new + update * (x - new)


def messages(sent: Tensor, weights: Tensor, packing: Packing) -> Tensor:
    """Sum the messages along the edges: sent [T, 2d], each node's messages along outgoing and
    incoming edges; weights [B, 2, L, L] (row: receiver) -> received [T, 2d]."""
    (width,) = constants(sent.shape[1:])
    along_incoming, along_outgoing = torch.split(
        packing.to_slots(sent), width // 2, dim=-1
    )  # [B, L, d] each
    incoming, outgoing = weights.to(sent.dtype).unbind(1)
    received = [
        packing.to_rows(incoming @ along_incoming),
        packing.to_rows(outgoing @ along_outgoing),
    ]
    return torch.cat(received, dim=-1)
