"""GC-SAN (Xu et al., "Graph Contextualized Self-Attention Network for Session-based
Recommendation", IJCAI 2019).

SR-GNN's gated graph layer, then self-attention among the nodes of the session. The session's vector
is a weighted mean of the last item's vectors after and before attention. Shapes are those of
`models/posrec.py`."""

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from posrec.config import setting
from posrec.models.base import ANCHORS, CLICKS_READ, DROPOUT, ITEM_WIDTH, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.items.item_table import ItemTable
from posrec.nn.layers.gated_graph import GatedGraph, message_graph
from posrec.nn.layers.transformer import apply_layers, self_attention
from posrec.nn.packing import Packing


@dataclass(frozen=True)
class GCSANConfig:
    d: int = setting(100, **ITEM_WIDTH)
    anchors: bool = setting(False, **ANCHORS)
    layers: int = setting(1, "layers of self-attention", at_least=0, tune=(1, 2))
    weight: float = setting(
        0.6,
        "weight of the last item after attention; 1 - `weight` is that before it",
        between=(0, 1),
        tune=(0.4, 0.6, 0.8),
    )
    dropout: float = setting(0.0, "dropout in the self-attention", **DROPOUT)
    max_length: int = setting(20, **CLICKS_READ)


class SelfAttentionLayer(nn.Module):
    """x [T, d] -> [T, d]; with `rows [R]` only these rows are computed after the attention, [R, d].

    F = softmax(Q K^T / sqrt(d)) V, Eq. (3)
    E = W_2 relu(W_1 F) + F, Eq. (4)

    Unlike a Transformer layer it has one head, no residual connection around the attention and no
    layer norms."""

    def __init__(self, d: int, dropout: float) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(d, 3 * d, bias=False)
        self.first = nn.Linear(d, d)
        self.second = nn.Linear(d, d)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, packing: Packing, rows: Tensor | None = None
    ) -> Tensor:
        attended = self_attention(self.queries_keys_values(x), 1, packing)
        if rows is not None:
            attended = attended[rows]
        inner = functional.relu(self.first(attended))
        mapped: Tensor = self.dropout(self.second(inner))
        return mapped + attended


class GCSAN(SessionModel):
    def __init__(self, items: int, config: GCSANConfig) -> None:
        super().__init__(items, config)
        self.embedding = ItemTable(items, config.d)
        self.graph = GatedGraph(config.d)
        self.attention = nn.ModuleList(
            SelfAttentionLayer(config.d, config.dropout) for _ in range(config.layers)
        )
        self.draw_weights(1 / math.sqrt(config.d))  # as in SR-GNN's code

    def build_graph(self, batch: SessionBatch) -> SessionGraph:
        return message_graph(batch, self.config.anchors, normalize=True)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """S_f [B, d], whose products with the items are the scores, Eq. (8); the item table."""
        graph, packing = self.graph_and_packing(batch)
        numbers = packing.to_rows(batch.items)
        x, table = self.embedding.look_up_and_table(numbers)  # [T, d]
        assert graph.weights is not None
        nodes = self.graph(x, graph.weights, packing)  # H [T, d], Eq. (1), (2)
        last_row = packing.row_at(graph.last(batch.lengths))
        # E^(k) of the stacked layers, Eq. (5), (6)
        attended = apply_layers(self.attention, nodes, last_row, packing)
        weight = self.config.weight  # Eq. (7)
        return weight * attended + (1 - weight) * nodes[last_row], table
