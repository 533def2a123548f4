"""PosRec (Qiu et al., "Exploiting Positional Information for Session-based Recommendation", TOIS
2021), section 4.3.

A session becomes a graph of its items (`nn/graph.py`). A gated graph layer sends messages along its
edges and from its anchors; a bidirectional Transformer reads the nodes with their positions. The
session's vector is the sum of its last item, its latest and its initial intention, and items are
scored by their product with it."""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from posrec.config import ENCODING, setting
from posrec.encodings.schemes import attention_bias, make_encoding
from posrec.models.base import CLICKS_READ, DROPOUT, ITEM_WIDTH, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.items.item_table import ItemTable
from posrec.nn.layers.gated_graph import GatedGraph, message_graph
from posrec.nn.layers.transformer import TransformerLayer, apply_layers
from posrec.nn.packing import Packing

INTENTIONS = ("last item", "latest intention", "initial intention")  # of Eq. (10)


@dataclass(frozen=True)
class PosRecConfig:
    """The paper's settings; those that it does not give are the best ones measured
    (docs/performance.md)."""

    d: int = setting(100, **ITEM_WIDTH)
    encoding: str = setting("ldpe", ENCODING, tune=("ldpe", "dpe", "lrpe", "none"))
    anchors: bool = setting(
        True,
        "messages from the [anchors](terms.md#anchors) to every node",
        tune=(True, False),
    )
    normalize: bool = setting(
        False,
        "divide the weights of a node's incoming and of its outgoing edges by their sum",
    )
    layers: int = setting(1, "layers of the Transformer", at_least=0)
    heads: int = setting(2, "heads of attention", at_least=1)
    feed_forward: int = setting(
        4, "width of the Transformer's feed-forward, in d", at_least=1
    )
    dropout: float = setting(0.0, "dropout in the Transformer", **DROPOUT)
    initialization: str = setting(
        "uniform",
        "`uniform` in +-1/sqrt(d), or `normal` with standard deviation 0.1",
        choices=("uniform", "normal"),
    )
    lambda0: float = setting(1.0, "weight of the last item's updated vector")
    lambda1: float = setting(1.0, "weight of the latest intention")
    lambda2: float = setting(
        1.0, "weight of the initial intention", tune=(0.25, 0.5, 1.0, 2.0)
    )
    max_length: int = setting(20, **CLICKS_READ)


class PosRec(SessionModel):
    """For B sessions of L slots (a node lives in the slot of its first click), T nodes in all, d
    dimensions and n items; l is the length of a session:

        X' = the gated graph layer of X                          Eq. (7), (8): gated_graph.py
        H  = Transformer(X' + P)                                 Eq. (9)
        h  = lambda0 X'_{l-1} + lambda1 H_{l-1} + lambda2 H_0    Eq. (10)
        y  = softmax(X h), with the loss -log y of the next item Eq. (11), (12)
    """

    def __init__(self, items: int, config: PosRecConfig) -> None:
        super().__init__(items, config)
        d = config.d
        self.embedding = ItemTable(items, d)
        self.graph = GatedGraph(d)
        self.encoding = make_encoding(
            config.encoding, d, config.max_length, config.heads
        )
        self.transformer = nn.ModuleList(
            TransformerLayer(d, config.heads, config.feed_forward * d, config.dropout)
            for _ in range(config.layers)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.config.initialization == "uniform":
            self.draw_weights(1 / math.sqrt(self.config.d))
            return
        for module in self.modules_to_initialize():
            for parameter in module.parameters(recurse=False):
                nn.init.normal_(parameter, std=0.1)

    def build_graph(self, batch: SessionBatch) -> SessionGraph:
        return message_graph(batch, self.config.anchors, self.config.normalize)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """h [B, d] and the item table, whose first n rows are X."""
        graph, packing = self.graph_and_packing(batch)
        x, table = self.embedding.look_up_and_table(packing.to_rows(batch.items))
        last_item, latest, initial = self.intentions(batch, graph, packing, x)
        return last_item + latest + initial, table

    def intentions(
        self, batch: SessionBatch, graph: SessionGraph, packing: Packing, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The three terms of Eq. (10), [B, d] each, from the nodes' vectors x [T, d]."""
        updated, placed, bias = self.updated_nodes(batch, graph, packing, x)
        last_row = packing.row_at(graph.last(batch.lengths))
        first_row = packing.row_of_slot[:, 0]
        rows = torch.cat([last_row, first_row])
        # Eq. (9), of which only two rows of each session are read: [2B, d]
        hidden = apply_layers(self.transformer, placed, rows, packing, bias)
        sessions = batch.items.shape[0]
        return (
            self.config.lambda0 * updated.index_select(0, last_row),
            self.config.lambda1 * hidden[:sessions],
            self.config.lambda2 * hidden[sessions:],
        )

    def updated_nodes(
        self, batch: SessionBatch, graph: SessionGraph, packing: Packing, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """X' and X' + P, [T, d] each, and what the encoding adds to the attention's logits."""
        assert graph.weights is not None
        updated = self.graph(x, graph.weights, packing)  # Eq. (7), (8)
        slot = torch.arange(batch.items.shape[1], device=batch.items.device)
        forward = slot.expand_as(batch.items)  # a node's earliest click
        backward = batch.lengths[:, None] - 1 - graph.latest  # and its latest
        positions = (forward, backward, batch.lengths)
        placed = updated + packing.to_rows(self.encoding(*positions))
        return updated, placed, attention_bias(self.encoding, *positions)

    def vector_parts(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The terms of Eq. (10) by name, [B, d] each; they add up to h."""
        graph, packing = self.graph_and_packing(batch)
        x = self.embedding.look_up(packing.to_rows(batch.items))
        terms = self.intentions(batch, graph, packing, x)
        return dict(zip(INTENTIONS, terms, strict=True))

    def click_attention(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The attention of both intentions in the last Transformer layer, the mean over heads,
        [B, L] each; none without a layer. Clicks on the same item all have their node's weight."""
        if not self.transformer:
            return {}
        graph, packing = self.graph_and_packing(batch)
        x = self.embedding.look_up(packing.to_rows(batch.items))
        _, hidden, bias = self.updated_nodes(batch, graph, packing, x)
        *layers, last = (cast(TransformerLayer, layer) for layer in self.transformer)
        for layer in layers:
            hidden = layer(hidden, packing, bias)
        weights = last.attention(hidden, packing, bias)  # [B, heads, L, L]
        by_node = weights.mean(1)
        by_click = by_node.gather(2, graph.alias[:, None].expand_as(by_node))
        session = torch.arange(batch.items.shape[0], device=batch.items.device)
        return {
            INTENTIONS[1]: by_click[session, graph.last(batch.lengths)],
            INTENTIONS[2]: by_click[:, 0],
        }
