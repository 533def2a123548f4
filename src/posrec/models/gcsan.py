"""GC-SAN (Xu et al., "Graph Contextualized Self-Attention Network for Session-based Recommendation", IJCAI 2019).

SR-GNN's gated graph layer, Eq. (1)-(2); then self-attention among the nodes of the session with a feed-forward, Eq.
(3)-(4), stacked, Eq. (5)-(6). The session's vector weighs the last item after attention with the last item before it,
Eq. (7); items are scored by their product with it, Eq. (8).

    B sessions of L slots (a node lives in the slot of its first click), T nodes in all, d dimensions, n items.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional

from posrec.data.batch import SessionBatch
from posrec.data.graph import SessionGraph, build_graph
from posrec.layers.anchors import message_weights
from posrec.layers.gated_graph import GatedGraph
from posrec.layers.item_table import ItemTable
from posrec.layers.linear import linear
from posrec.layers.packing import Packing, pack
from posrec.layers.transformer import in_turn, self_attention


@dataclass(frozen=True)
class GCSANConfig:
    d: int = 100
    anchors: bool = False  # the anchor edges of PosRec's paper, counted into the sums that edges are divided by
    layers: int = 1  # of self-attention
    weight: float = 0.6  # of the attention's last item; the graph's has the rest
    dropout: float = 0.0
    max_length: int = 20  # the latest clicks that are read


class SelfAttentionLayer(nn.Module):
    """F = softmax(Q K^T / sqrt(d)) V, Eq. (3); E = W_2 relu(W_1 F) + F, Eq. (4). x [T, d] -> [T, d].

    One head, no sum around the attention and no layer norms: not a Transformer's layer. With `rows [R]` only these are
    computed past the attention, [R, d].
    """

    def __init__(self, d: int, dropout: float) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(d, 3 * d, bias=False)
        self.first = nn.Linear(d, d)
        self.second = nn.Linear(d, d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, packing: Packing, rows: Tensor | None = None) -> Tensor:
        attended = self_attention(linear(self.queries_keys_values, x), 1, packing)
        if rows is not None:
            attended = attended[rows]
        mapped: Tensor = self.dropout(linear(self.second, functional.relu(linear(self.first, attended))))
        return mapped + attended


class GCSAN(nn.Module):
    """Items are numbered 1..items; any other number is an item the model does not know."""

    def __init__(self, items: int, config: GCSANConfig) -> None:
        super().__init__()
        if not 0 <= config.weight <= 1:
            raise ValueError(f"weight={config.weight} must be between 0 and 1")
        self.config = config
        self.items = items
        self.embedding = ItemTable(items, config.d)
        self.graph = GatedGraph(config.d)
        self.attention = nn.ModuleList(SelfAttentionLayer(config.d, config.dropout) for _ in range(config.layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(d), the field's custom."""
        bound = 1 / math.sqrt(self.config.d)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def build_graph(self, batch: SessionBatch) -> SessionGraph:
        graph = build_graph(batch, with_distances=self.config.anchors)
        last = graph.last(batch.lengths)
        weights = message_weights(graph.edges, graph.distances, graph.repeated, last, normalize=True)
        return replace(graph, weights=weights)

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        """S_f [B, d], Eq. (7)."""
        return self.vectors(batch)[0]

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """S_f [B, d] and the item table, whose first n rows are the items."""
        graph = batch.graph or self.build_graph(batch)
        packing = batch.packing or pack(graph.nodes, batch.capacity)
        x, table = self.embedding.look_up_and_table(packing.to_rows(batch.items))  # [T, d]
        assert graph.weights is not None
        nodes = self.graph(x, graph.weights, packing)  # H [T, d], Eq. (1), (2)
        last_row, weight = packing.row_at(graph.last(batch.lengths)), self.config.weight
        attended = in_turn(self.attention, nodes, last_row, packing)  # E^(k), Eq. (3)-(6)
        return weight * attended + (1 - weight) * nodes[last_row], table

    def item_vectors(self) -> Tensor:
        """[n, d]: row i is item i + 1."""
        return self.embedding.vectors()

    def scores(self, batch: SessionBatch) -> Tensor:
        """[B, n], the logits of Eq. (8)."""
        return self.session_vectors(batch) @ self.item_vectors().T
