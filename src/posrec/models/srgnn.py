"""SR-GNN (Wu et al., "Session-based Recommendation with Graph Neural Networks", AAAI 2019).

A session becomes a graph of its items; edges out of a node, and edges into it, are divided by how many there are. A
gated graph layer lets every node hear both sides, Eq. (1)-(5). The last item asks all clicks what they weigh, and their
weighted sum is the session's global vector, Eq. (6); joined with the last item's own it is the session's vector,
Eq. (7); items are scored by their product with it, Eq. (8).

    B sessions of L slots (a node lives in the slot of its first click), T nodes in all, d dimensions, n items.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.gated_graph import GatedGraph, message_graph
from posrec.nn.graph import SessionGraph
from posrec.nn.item_table import ItemTable
from posrec.nn.matmul import linear


@dataclass(frozen=True)
class SRGNNConfig:
    d: int = 100
    anchors: bool = False  # the anchor edges of PosRec's paper, counted into the sums that edges are divided by
    steps: int = 1  # how often the graph layer is applied
    max_length: int = 20  # the latest clicks that are read


class SRGNN(SessionModel):
    def __init__(self, items: int, config: SRGNNConfig) -> None:
        super().__init__(items, config)
        d = config.d
        self.embedding = ItemTable(items, d)
        self.graph = GatedGraph(d)
        self.ask = nn.Linear(d, 2 * d)  # W_1 for the last item and W_2 for every click, in one product
        self.weigh = nn.Parameter(torch.empty(d))  # q
        self.join = nn.Linear(2 * d, d)  # W_3
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(d), as its authors' program has it."""
        bound = 1 / math.sqrt(self.config.d)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def build_graph(self, batch: SessionBatch) -> SessionGraph:
        return message_graph(batch, self.config.anchors, normalize=True)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """s_h [B, d] and the item table, whose first n rows are the items."""
        graph, packing = self.graph_and_packing(batch)
        nodes, table = self.embedding.look_up_and_table(packing.to_rows(batch.items))  # [T, d]
        assert graph.weights is not None
        last = graph.last(batch.lengths)
        for _ in range(self.config.steps):
            nodes = self.graph(nodes, graph.weights, packing)  # Eq. (1)-(5)

        last_row = packing.row_at(last)
        last_item = nodes[last_row]  # s_l [B, d]
        of_last, of_node = linear(self.ask, nodes).chunk(2, dim=1)  # [T, d] each
        asked = torch.sigmoid(packing.to_slots(of_node) + of_last[last_row][:, None])  # [B, L, d]
        weight = (asked * self.weigh).sum(2) * clicks(graph, last)  # [B, L]
        session = (weight[..., None] * packing.to_slots(nodes)).sum(1)  # s_g [B, d], Eq. (6)
        return linear(self.join, torch.cat([last_item, session], dim=1)), table


def clicks(graph: SessionGraph, last: Tensor) -> Tensor:
    """[B, L] how often each node was clicked, 0 in empty slots: Eq. (6) sums over clicks, and a node's are all alike.

    Every click but the session's last leads to another.
    """
    slot = torch.arange(graph.edges.shape[1], device=last.device)
    return graph.edges.sum(2) + (slot == last[:, None])
