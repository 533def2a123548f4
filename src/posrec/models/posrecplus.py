"""posrec-plus: PosRec's graph, dual positions and bidirectional readout, and what has been learnt since the paper.

    B sessions of L slots (a node lives in the slot of its first click), T nodes in all, d dimensions, n items.

Item vectors, smoothed over the graph of co-clicked items (`nn/coclicks.py`) and scored by their cosine:

    E = id vectors, plus those of the attributes if there are any      `nn/attributes.py`
    X = E + smoothing A E                                               x_t: the row of X of node t's item
    x', H = gated graph layer, dual positional encoding, Transformer    as in PosRec, Eq. (7)-(9), without anchors
    h   = x'_{l-1} + H_{l-1} + H_0                                      Eq. (10)
    z_i = scale cos(h, X_i) + trend_i                                   in place of Eq. (11); nn/trends.py

Repeat and explore (`nn/own_items.py`): p_i = g_repeat r_i + g_explore e_i, with g and r of `repeat_part.py`.

The network is trained by -log p of the next item. Without dropout of what it reads it learns the training sessions by
heart: `item_dropout` acts on the x_t that the graph layer reads, `repeat_dropout` on the x_t, H_t and h that the repeat
part and the gate read. `id_dropout` replaces the X of some items by the vectors of their attributes alone, which is all
that an item without clicks has.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.encodings.schemes import attention_bias, make_encoding
from posrec.models.base import Encoded, SessionModel
from posrec.models.repeat_part import RepeatPart, of_owner, owner, positions
from posrec.models.setting_ranges import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SHARE, require
from posrec.nn.attributes import Attributes, AttributeVectors
from posrec.nn.batch import SessionBatch
from posrec.nn.coclicks import CoClickGraph
from posrec.nn.gated_graph import GatedGraph, message_graph
from posrec.nn.graph import SessionGraph
from posrec.nn.item_table import ItemTable
from posrec.nn.own_items import REPEAT, OwnItems
from posrec.nn.packing import Packing
from posrec.nn.transformer import TransformerLayer
from posrec.nn.trends import Trends

PARTS = ("last item", "latest intention", "initial intention")  # of Eq. (10)


@dataclass(frozen=True)
class PosRecPlusConfig:
    """Chosen on the validation parts of Diginetica and Yoochoose 1/64 together (docs/models_plus.md)."""

    d: int = 200
    encoding: str = "ldpe"
    graph: bool = True  # the gated graph layer
    layers: int = 1  # Transformer layers
    heads: int = 2
    feed_forward: int = 4  # width of the Transformer's feed-forward, in d
    dropout: float = 0.1  # inside the Transformer
    item_dropout: float = 0.35
    repeat_dropout: float = 0.5
    cosine: bool = True  # score by the cosine; else by the plain product, without a scale
    scale: float = 13.0
    attributes: str = ""  # columns of the items file that are part of an item's vector: category,price or auto
    id_dropout: float = 0.1  # the share of items that are known by their attributes alone in a training step
    smoothing: float = 0.5  # weight of the co-clicked items in an item's vector
    neighbours: int = 12  # co-clicked items of an item ...
    window: int = 2  # ... clicked at most so far apart
    trend: bool = True  # a term for how much an item is clicked of late
    repeat: bool = True  # repeat and explore; else explore alone, without a term for the session's own items
    repeat_width: int = 64
    max_length: int = 50  # the latest clicks that are read


class PosRecPlus(SessionModel):
    """PosRec with smoothed item vectors, scored by cosine, in a mixture of repeating a click and exploring."""

    def __init__(self, items: int, config: PosRecPlusConfig) -> None:
        super().__init__(items, config)
        require(config, AT_LEAST_1, "d", "heads", "feed_forward", "repeat_width", "neighbours", "window")
        require(config, AT_LEAST_0, "layers", "smoothing")
        require(config, ABOVE_0, "scale")
        require(config, SHARE, "id_dropout")
        d = config.d
        self.embedding = ItemTable(items, d)
        self.attributes = AttributeVectors(self.embedding.rows, d) if config.attributes else None
        self.co_clicks = CoClickGraph(config.smoothing, config.neighbours, config.window)
        self.trends = Trends(self.embedding.rows) if config.trend else None
        self.graph = GatedGraph(d) if config.graph else None
        heads = {"heads": config.heads} if config.encoding == "rpe" else {}
        self.encoding = make_encoding(config.encoding, d, config.max_length, **heads)
        self.transformer = nn.ModuleList(
            TransformerLayer(d, config.heads, config.feed_forward * d, config.dropout) for _ in range(config.layers)
        )
        self.has_own_items = config.repeat
        self.repeat = RepeatPart(d, config.repeat_width, config.max_length) if config.repeat else None
        self.item_dropout, self.repeat_dropout = nn.Dropout(config.item_dropout), nn.Dropout(config.repeat_dropout)
        bound = 1 / math.sqrt(d)
        for module in self.modules_to_initialize():
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, -bound, bound)
        if self.trends is not None:
            nn.init.zeros_(self.trends.weights)

    def describe(self, attributes: Attributes) -> None:
        assert self.attributes is not None
        self.attributes.describe(attributes)

    def count(self, items: Tensor, offsets: Tensor) -> None:
        if self.attributes is not None and self.attributes.is_described:
            rows = self.embedding.rows
            clicked = torch.zeros(len(rows) + 1, dtype=torch.bool)
            clicked[rows.local(items[offsets[0] : offsets[-1]].long() - 1)] = True
            with torch.no_grad():
                self.embedding.weight[~clicked[:-1]] = 0  # an item without clicks is what its attributes say
        self.co_clicks.count(items, offsets, self.embedding.rows)
        if self.trends is not None:
            self.trends.count(items, offsets)

    def saved_weights(self) -> dict[str, Tensor]:
        """The weights with X in place of E and the trend after the whole log: recommending needs no counts."""
        weights = {name: value for name, value in self.state_dict().items() if not name.startswith("attributes.")}
        weights["embedding.weight"] = self.smoothed().detach()
        if self.trends is not None:
            weights["trends.now"] = self.trends.latest().detach()
        return weights

    def load_saved_weights(self, weights: dict[str, Tensor]) -> None:
        """Find E from X; the trend after the log is not needed, since it has been counted."""
        self.load_state_dict({**self.state_dict(), **weights})
        with torch.no_grad():
            self.embedding.weight.copy_(self.co_clicks.unsmoothed(self.embedding.weight))
            if self.attributes is not None and self.attributes.is_described:
                self.attributes.fit(self.embedding.weight)
                self.embedding.weight.sub_(self.attributes())

    def smoothed(self, dropout: bool = False) -> Tensor:
        """X, and after it the rows that fill the table up."""
        table = self.embedding.weight
        if self.attributes is None or not self.attributes.is_described:
            return self.co_clicks.smoothed(table)
        of_attributes = self.attributes()
        smoothed = self.co_clicks.smoothed(table + of_attributes)
        if not dropout or self.config.id_dropout == 0:
            return smoothed
        dropped = (torch.rand(len(table), device=table.device) < self.config.id_dropout) & self.attributes.described
        return torch.where(dropped[:, None], of_attributes, smoothed)

    def build_graph(self, batch: SessionBatch) -> SessionGraph:
        return message_graph(batch, anchors=False, normalize=True)

    def item_vectors(self) -> Tensor:
        return self.with_trend(self.scored(self.smoothed()))[: self.embedding.rows.held]

    def similarity_vectors(self) -> Tensor:
        return self.smoothed()[: self.embedding.rows.held]

    def scored(self, vectors: Tensor) -> Tensor:
        """The vectors whose product is the score: of length one, so that it is a cosine."""
        return functional.normalize(vectors, dim=-1) if self.config.cosine else vectors

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        sessions, table, _ = self.encode(batch)
        return sessions, table

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.sessions_and_own_items(batch)[0]

    def encode(self, batch: SessionBatch) -> Encoded:
        sessions, smoothed, own = self.encode_sessions(batch)
        return Encoded(sessions, self.with_trend(self.scored(smoothed), batch), own)

    def sessions_and_own_items(self, batch: SessionBatch) -> tuple[Tensor, OwnItems | None]:
        sessions, _, own = self.encode_sessions(batch)
        return sessions, own

    def encode_sessions(self, batch: SessionBatch) -> Encoded:
        """As `encode`, with the table X as it is: scaling every row takes longer than reading a few sessions."""
        graph, packing = self.graph_and_packing(batch)
        numbers = packing.to_rows(batch.items)
        x, smoothed = self.embedding.rows.look_up_and_table(self.smoothed(self.training), numbers)
        updated, hidden = self.read(batch, graph, packing, x)
        h = sum_of_parts(batch, graph, packing, updated, hidden)
        sessions = self.scored(h) * (self.config.scale if self.config.cosine else 1)
        if self.trends is not None:
            sessions = torch.cat([sessions, self.trends.of_sessions(h, batch.when)], 1)
        own = None
        if self.repeat is not None:
            nodes = self.with_trend(self.scored(x), batch, (numbers - 1).clamp(0, self.items - 1))
            products = (of_owner(sessions, packing) * nodes).sum(1)  # [T] z of the nodes
            dropped = (self.repeat_dropout(one) for one in (x, hidden, h))
            own = self.repeat(batch, graph, packing, self.known(numbers), products, *dropped)
        return Encoded(sessions, smoothed, own)

    def with_trend(self, vectors: Tensor, batch: SessionBatch | None = None, rows: Tensor | None = None) -> Tensor:
        """Vectors of all items, or of those in `rows` of the table, with the columns of the trend."""
        if self.trends is None:
            return vectors
        return torch.cat([vectors, self.trends.of_items(None if batch is None else batch.when, rows)], 1)

    def known(self, numbers: Tensor) -> Tensor:
        """Item numbers, with 0 for those that are unknown."""
        return torch.where((numbers >= 1) & (numbers <= self.items), numbers, 0)

    def read(self, batch: SessionBatch, graph: SessionGraph, packing: Packing, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, d] -> x' [T, d], Eq. (7)-(8), and H [T, d], Eq. (9)."""
        updated, hidden, bias = self.placed(batch, graph, packing, x)
        for layer in self.transformer:
            hidden = layer(hidden, packing, bias)
        return updated, hidden

    def placed(
        self, batch: SessionBatch, graph: SessionGraph, packing: Packing, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """x [T, d] -> x' [T, d]; x' plus its positional encoding, the Transformer's input; and the attention's bias."""
        updated = self.item_dropout(x)
        if self.graph is not None:
            assert graph.weights is not None
            updated = self.graph(updated, graph.weights, packing)
        forward, backward = positions(batch, graph)
        rows = (packing.to_rows(part)[:, None] for part in (forward, backward))  # [T, 1] each
        hidden = updated + self.encoding(*rows, batch.lengths[owner(packing)])[:, 0]
        return updated, hidden, attention_bias(self.encoding, forward, backward, batch.lengths)

    def vector_parts(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The terms of Eq. (10) by name, scaled as the session vector is; they add up to it."""
        graph, packing = self.graph_and_packing(batch)
        updated, hidden = self.read(batch, graph, packing, self.input_vectors(batch, packing))
        parts = parts_of(batch, graph, packing, updated, hidden)
        length = torch.stack(parts).sum(0).norm(dim=-1, keepdim=True)
        scale = self.config.scale / length if self.config.cosine else torch.ones_like(length)
        named = {name: part * scale for name, part in zip(PARTS, parts, strict=True)}
        if self.trends is None:
            return named
        columns = self.trends.of_sessions(length, None)
        named = {name: functional.pad(part, (0, columns.shape[1])) for name, part in named.items()}
        return {**named, "trend": functional.pad(columns, (self.config.d, 0))}

    def click_attention(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The attention of the latest and the initial intention in the last Transformer layer, the mean over heads, and
        r of the repeat part; [B, L] each.

        Clicks on the same item share a node, and each of them has the node's weight.
        """
        graph, packing = self.graph_and_packing(batch)
        _, hidden, bias = self.placed(batch, graph, packing, self.input_vectors(batch, packing))
        session = torch.arange(batch.items.shape[0], device=batch.items.device)
        of_nodes = {}
        for layer in self.transformer:
            weights = cast(TransformerLayer, layer).attention(hidden, packing, bias).mean(1)  # [B, L, L]
            of_nodes = {PARTS[1]: weights[session, graph.last(batch.lengths)], PARTS[2]: weights[:, 0]}
            hidden = layer(hidden, packing, bias)
        own = self.sessions_and_own_items(batch)[1]
        if own is not None:
            of_nodes[REPEAT] = own.repeat_shares
        return {name: weights.gather(1, graph.alias) for name, weights in of_nodes.items()}

    def input_vectors(self, batch: SessionBatch, packing: Packing) -> Tensor:
        """x [T, d]."""
        return self.embedding.rows.look_up_and_table(self.smoothed(), packing.to_rows(batch.items))[0]


def parts_of(
    batch: SessionBatch, graph: SessionGraph, packing: Packing, updated: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """x'_{l-1}, H_{l-1}, H_0: the three parts of Eq. (10), [B, d] each."""
    last, first = packing.row_at(graph.last(batch.lengths)), packing.row_of_slot[:, 0]
    return updated[last], hidden[last], hidden[first]


def sum_of_parts(batch: SessionBatch, graph: SessionGraph, packing: Packing, updated: Tensor, hidden: Tensor) -> Tensor:
    """h [B, d], Eq. (10)."""
    last, latest, initial = parts_of(batch, graph, packing, updated, hidden)
    return last + latest + initial
