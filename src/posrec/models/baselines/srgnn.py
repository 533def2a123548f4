"""SR-GNN (Wu et al., "Session-based Recommendation with Graph Neural Networks", AAAI 2019).

A session becomes a graph of its items; the weights of a node's outgoing edges, and of its incoming
edges, are divided by their sum. A gated graph layer sends messages along the edges in both
directions, and attention from the last item weighs the clicks. Shapes are those of
`models/posrec.py`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.config import setting
from posrec.models.base import ANCHORS, CLICKS_READ, ITEM_WIDTH, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.items.item_table import ItemTable
from posrec.nn.layers.gated_graph import GatedGraph, message_graph


@dataclass(frozen=True)
class SRGNNConfig:
    d: int = setting(100, **ITEM_WIDTH)
    anchors: bool = setting(False, **ANCHORS, tune=(False, True))
    steps: int = setting(
        1, "how often the graph layer is applied", at_least=0, tune=(1, 2, 3)
    )
    max_length: int = setting(20, **CLICKS_READ)


class SRGNN(SessionModel):
    def __init__(self, items: int, config: SRGNNConfig) -> None:
        super().__init__(items, config)
        d = config.d
        self.embedding = ItemTable(items, d)
        self.graph = GatedGraph(d)
        # W_1 for the last item and W_2 for every click, in one product
        self.ask = nn.Linear(d, 2 * d)
        self.weigh = nn.Parameter(torch.empty(d))  # q
        self.join = nn.Linear(2 * d, d)  # W_3
        self.draw_weights(1 / math.sqrt(config.d))  # as in the authors' code

    def build_graph(self, batch: SessionBatch) -> SessionGraph:
        return message_graph(batch, self.config.anchors, normalize=True)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """s_h [B, d], Eq. (7), whose products with the items are their scores, Eq. (8), and the
        item table."""
        graph, packing = self.graph_and_packing(batch)
        numbers = packing.to_rows(batch.items)
        nodes, table = self.embedding.look_up_and_table(numbers)  # [T, d]
        assert graph.weights is not None
        last = graph.last(batch.lengths)
        for _ in range(self.config.steps):
            nodes = self.graph(nodes, graph.weights, packing)  # Eq. (1)-(5)

        last_row = packing.row_at(last)
        last_item = nodes[last_row]  # s_l [B, d]
        query, key = self.ask(nodes).chunk(2, dim=1)  # [T, d] each
        match = torch.sigmoid(packing.to_slots(key) + query[last_row][:, None])
        weight = (match * self.weigh).sum(2) * clicks(graph, last)  # [B, L]
        weighted = weight[..., None] * packing.to_slots(nodes)  # [B, L, d]
        session = weighted.sum(1)  # s_g [B, d], Eq. (6)
        return self.join(torch.cat([last_item, session], dim=1)), table


def clicks(graph: SessionGraph, last: Tensor) -> Tensor:
    """[B, L] how often each node was clicked, 0 in empty slots: Eq. (6) is a sum over clicks. Every
    click except the session's last has one outgoing edge."""
    slot = torch.arange(graph.edges.shape[1], device=last.device)
    return graph.edges.sum(2) + (slot == last[:, None])
