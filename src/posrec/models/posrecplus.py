"""posrec-plus: PosRec's dual positions and its two intentions, read in one pass over a session, and
what has been learnt since: smoothed item vectors, cosines, trends, and a term for repeated clicks.

Shapes: T clicks of B sessions, Q clicks at which vectors are asked for, W distances between clicks,
d dimensions, n items."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.config import ENCODING, setting
from posrec.encodings.schemes import learned_table, look_up
from posrec.models.base import BatchVectors, SessionModel
from posrec.models.clicks import Clicks, PackedClicks, PaddedClicks
from posrec.models.posrec import INTENTIONS
from posrec.models.session_reader import MOST_CLICKS, SessionReader, Terms
from posrec.nn.batch import SessionBatch
from posrec.nn.items.attribute_vectors import AttributeTable, AttributeVectors
from posrec.nn.items.coclicks import CoClickGraph
from posrec.nn.items.item_table import (
    ItemTable,
    is_item,
    look_up_and_table,
    padded_rows,
)
from posrec.nn.items.own_items import LOG_OF_NO_CHANCE, REPEAT, OwnItems
from posrec.nn.items.trends import COLUMNS, Trends
from posrec.nn.layers.transformer import Dropout
from posrec.nn.packing import pack

MOST_RAISED = 10.0  # the largest |delta| of the session's own items
SHORTEST = 1e-12  # the length of a vector by which one can divide


@dataclass(frozen=True)
class PosRecPlusConfig:
    """Chosen on the validation parts of Diginetica and Yoochoose 1/64 together
    (docs/models_plus.md)."""

    d: int = setting(
        200, "width of item vectors", at_least=1, tune=(100, 128, 200, 256)
    )
    encoding: str = setting("ldpe", ENCODING)
    message: bool = setting(True, "a message from each click to the next, by a GRU")
    initial: bool = setting(True, "the initial intention, the first click's view")
    layers: int = setting(1, "layers of the Transformer", at_least=0)
    heads: int = setting(2, "heads of attention", at_least=1)
    feed_forward: int = setting(
        4, "width of the Transformer's feed-forward, in d", at_least=1
    )
    dropout: float = setting(0.1, "dropout in the Transformer", between=(0, 1))
    item_dropout: float = setting(
        0.35,
        "dropout of the item vectors that are read",
        between=(0, 1),
        tune=(0.1, 0.2, 0.35, 0.5),
    )
    repeat_dropout: float = setting(
        0.5, "dropout of what the repeat part reads", between=(0, 1), tune=(0.2, 0.5)
    )
    cosine: bool = setting(
        True, "score by the cosine; else by the plain product, without a scale"
    )
    scale: float = setting(
        13.0, "the factor of the cosine", above=0, tune=(11.0, 13.0, 16.0)
    )
    attributes: str = setting(
        "",
        "columns of the items file that describe an item: `category,price` or `auto`",
    )
    id_dropout: float = setting(
        0.1,
        "share of items that a step knows by their attributes alone",
        between=(0, 1),
    )
    smoothing: float = setting(
        0.5,
        "weight of co-clicked items in a vector",
        at_least=0,
        tune=(0.0, 0.25, 0.5, 1.0),
    )
    neighbours: int = setting(
        12, "how many co-clicked items of an item are read", at_least=1
    )
    window: int = setting(
        2, "how far apart two clicks of co-clicked items may be", at_least=1
    )
    trend: bool = setting(True, "a term for how much an item is clicked of late")
    repeat: bool = setting(
        True,
        "repeat and explore; else explore alone, without a term for the session's own items",
    )
    repeat_width: int = setting(64, "width of the repeat part", at_least=1)
    max_length: int = setting(
        50,
        "how many of a session's latest clicks are read",
        at_least=1,
        tune=(20, 50, 100),
    )


class RepeatPart(nn.Module):
    """How likely each of the items clicked so far is clicked again.

    At click i, for each click j <= i that is the latest on its item, with f the position of the
    first click on the item and c the number of clicks on it, both as they are at click j:

        u_ij = relu(W_x x_j + W_H H_j + W_h h_i + P_f[f] + P_b[i - j] + P_c[c] + bias)
        (rho_ij, delta_ij) = W_u u_ij + bias;    r_i = softmax of rho_ij over j
        g_i  = softmax(W_2 relu(W_1 [h_i || v_i] + bias) + bias)
        v_i  = clicks and items so far (log(1 + .) / 3), whether the item of i was clicked before,
               logsumexp(rho_i) / 5
    """

    def __init__(self, d: int, width: int, max_length: int) -> None:
        super().__init__()
        self.of_item = nn.Linear(d, width)
        self.of_state = nn.Linear(d, width, bias=False)
        self.of_session = nn.Linear(d, width, bias=False)
        self.forward_position = learned_table(max_length, width)
        self.backward_position = learned_table(max_length, width)
        self.clicks = learned_table(MOST_CLICKS + 1, width)
        self.out = nn.Linear(width, 2)
        self.gate = nn.Sequential(
            nn.Linear(d + 4, width), nn.ReLU(), nn.Linear(width, 2)
        )

    def forward(self, clicks: Clicks, x: Tensor, hidden: Tensor, h: Tensor) -> OwnItems:
        """x and H [..., d] of every click, h [Q, d] of the clicks that are asked for."""
        rho, delta = self.two_numbers(self.units(clicks, x, hidden, h))  # [Q, W] each
        has_item = clicks.latest > 0
        rho = rho.masked_fill(~has_item, LOG_OF_NO_CHANCE)
        items = has_item.sum(1, keepdim=True)
        counts = torch.cat([clicks.length, items], 1).to(h.dtype).log1p() / 3
        strength = rho.logsumexp(1, keepdim=True)
        features = [
            h,
            counts,
            clicks.is_return.to(h.dtype),
            strength.clamp(min=-20) / 5,
        ]
        logits = self.gate(torch.cat(features, 1))  # [Q, 2]
        # Without an item to repeat, the gate is closed.
        closed = logits.new_tensor([LOG_OF_NO_CHANCE, 0.0])
        gate = torch.where(items > 0, logits, closed).log_softmax(1)
        repeat = gate[:, :1] + rho - strength
        delta = delta.clamp(-MOST_RAISED, MOST_RAISED)
        return OwnItems(clicks.latest, delta, repeat, gate[:, 1])

    def units(self, clicks: Clicks, x: Tensor, hidden: Tensor, h: Tensor) -> Tensor:
        """u [Q, W, width]."""
        of_click = (
            self.of_item(x)
            + self.of_state(hidden)
            + look_up(self.forward_position, clicks.first_time)
            + look_up(self.clicks, clicks.times)
        )
        of_distance = look_up(self.backward_position, clicks.distance)
        units: Tensor = clicks.seen(of_click) + self.of_session(h)[:, None]
        return (units + of_distance).relu()

    def two_numbers(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """W_u u + bias. On a GPU as sums, into which compiled code takes the computation of u, so
        that it is not stored and read again."""
        if u.is_cuda:
            first, second = ((u * weight).sum(2) for weight in self.out.weight)
        else:
            first, second = (u @ weight for weight in self.out.weight)
        return first + self.out.bias[0], second + self.out.bias[1]


class PosRecPlus(SessionModel):
    """With x_j the row of X of click j's item, the j-th of its session from 0 on:

        E   = id vectors, plus those of the attributes     `nn/items/attribute_vectors.py`
        X   = E + smoothing A E                            A: co-clicks, `nn/items/coclicks.py`
        h_i = the intentions at click i, from x_j, j <= i  Eq. (7)-(10), `session_reader.py`
        z_i = scale cos(h_i, X) + trend                    for Eq. (11), `nn/items/trends.py`
        p   = g_repeat r + g_explore e                     `RepeatPart`, `nn/items/own_items.py`

    The loss is -log p of the next item, at every click of a session.
    """

    is_causal = True

    def __init__(self, items: int, config: PosRecPlusConfig) -> None:
        super().__init__(items, config)
        d = config.d
        rows = padded_rows(items)
        self.embedding = ItemTable(items, d)
        self.attributes = AttributeVectors(rows, d) if config.attributes else None
        self.co_clicks = CoClickGraph(
            config.smoothing, config.neighbours, config.window
        )
        self.trends = Trends(rows) if config.trend else None
        self.bias_columns = COLUMNS if config.trend else 0
        self.reader = SessionReader(config)
        self.has_own_items = config.repeat
        self.repeat = None
        if config.repeat:
            self.repeat = RepeatPart(d, config.repeat_width, config.max_length)
        self.item_dropout = Dropout(config.item_dropout)
        self.repeat_dropout = Dropout(config.repeat_dropout)
        self.draw_weights(1 / math.sqrt(d))
        if self.trends is not None:
            nn.init.zeros_(self.trends.weights)

    @property
    def encoding(self) -> nn.Module:
        return self.reader.encoding

    def describe(self, attributes: AttributeTable) -> None:
        assert self.attributes is not None
        self.attributes.describe(attributes)

    def count(self, items: Tensor, offsets: Tensor) -> None:
        if self.attributes is not None and self.attributes.is_described:
            self.attributes.count(items[offsets[0] : offsets[-1]])
        self.co_clicks.count(items, offsets, self.items)
        if self.trends is not None:
            self.trends.count(items, offsets)

    def saved_weights(self) -> dict[str, Tensor]:
        """The weights with X in place of E and the trend after the whole log: recommending needs no
        counts."""
        weights = {
            name: value
            for name, value in self.state_dict().items()
            if not name.startswith("attributes.")
        }
        weights["embedding.weight"] = self.smoothed().detach()
        if self.trends is not None:
            weights["trends.now"] = self.trends.latest().detach()
        return weights

    def load_saved_weights(self, weights: dict[str, Tensor]) -> None:
        """Find E from X; the trend after the log is not needed, since it has been counted."""
        self.load_state_dict({**self.state_dict(), **weights})
        table = self.embedding.weight
        with torch.no_grad():
            table.copy_(self.co_clicks.unsmoothed(table))
            if self.attributes is not None and self.attributes.is_described:
                self.attributes.fit(table)
                self.attributes.keep(weights, "attributes.")
                table.sub_(self.attributes())

    def smoothed(self, dropout: bool = False) -> Tensor:
        """X, and after it the rows that fill the table up."""
        table = self.embedding.weight
        if self.attributes is None or not self.attributes.is_described:
            return self.co_clicks.smoothed(table)
        of_attributes = self.attributes()
        # An item without clicks is what its attributes say.
        of_ids = torch.where(self.attributes.clicked[:, None], table, 0)
        smoothed = self.co_clicks.smoothed(of_ids + of_attributes)
        if not dropout or self.config.id_dropout == 0:
            return smoothed
        drawn = torch.rand(len(table), device=table.device) < self.config.id_dropout
        dropped = drawn & self.attributes.described
        return torch.where(dropped[:, None], of_attributes, smoothed)

    def attribute_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if self.attributes is None or not self.attributes.is_described:
            return None
        return self.attributes.parts()

    def with_items(self, vectors: Tensor) -> "PosRecPlus":
        """A copy of a model that was opened, which knows more items: those of these vectors X
        [m, d], without clicks."""
        items = self.items + len(vectors)
        rows = padded_rows(items)
        table = self.embedding.weight.new_zeros(rows, self.config.d)
        table[: self.items] = self.embedding.vectors().detach()
        table[self.items : items] = vectors
        extended = deepcopy(self)
        extended.items = items
        extended.embedding.items = items
        extended.embedding.weight = nn.Parameter(table)
        if self.trends is not None and extended.trends is not None:
            extended.trends.now = table.new_zeros(rows)
            extended.trends.now[: self.items] = self.trends.now[: self.items]
        return extended

    def click_vectors(self, items: Tensor) -> Tensor:
        return look_up_and_table(self.smoothed(), items, self.items)[0]

    def item_vectors(self) -> Tensor:
        return self.with_trend(self.scored(self.smoothed()))[: self.items]

    def similarity_vectors(self) -> Tensor:
        return self.smoothed()[: self.items]

    def scored(self, vectors: Tensor) -> Tensor:
        """The vectors whose product is the score: of length one, so that it is a cosine."""
        return functional.normalize(vectors, dim=-1) if self.config.cosine else vectors

    def scaled(self, term: Tensor, h: Tensor) -> Tensor:
        """A term of h, or h, scaled so that products with `scored` item vectors are cosines times
        the scale; [Q, d]."""
        if not self.config.cosine:
            return term
        length = h.norm(dim=-1, keepdim=True).clamp(min=SHORTEST)
        scaled: Tensor = term * self.config.scale / length
        return scaled

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        sessions, table, _ = self.batch_vectors(batch)
        return sessions, table

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.sessions_and_own_items(batch)[0]

    def batch_vectors(self, batch: SessionBatch) -> BatchVectors:
        sessions, smoothed, own_items = self.unscaled_vectors(batch)
        table = self.with_trend(self.scored(smoothed), batch.when)
        return BatchVectors(sessions, table, own_items)

    def sessions_and_own_items(
        self, batch: SessionBatch
    ) -> tuple[Tensor, OwnItems | None]:
        sessions, _, own_items = self.unscaled_vectors(batch)
        return sessions, own_items

    def unscaled_vectors(self, batch: SessionBatch) -> BatchVectors:
        """As `batch_vectors`, with X as it is: scaling every row takes longer than reading a few
        sessions."""
        clicks = self.clicks_of(batch)
        table = self.smoothed(self.training)
        if batch.vectors is None:
            x, table = look_up_and_table(table, clicks.items, self.items)
        else:
            x = batch.vectors
        hidden, terms = self.reader(self.item_dropout(x), clicks)
        h = sum_of(terms)
        sessions = self.scaled(h, h)
        if self.trends is not None:
            sessions = self.trends.with_moments(sessions, batch.when)
        if self.repeat is None:
            return BatchVectors(sessions, table)
        dropped = (self.repeat_dropout(vectors) for vectors in (x, hidden, h))
        return BatchVectors(sessions, table, self.repeat(clicks, *dropped))

    def clicks_of(self, batch: SessionBatch) -> Clicks:
        items = batch.items
        if batch.vectors is None:
            items = torch.where(is_item(items, self.items), items, 0)
        if not batch.every_click:
            return PaddedClicks(items, batch.lengths)
        packing = batch.packing or pack(batch.mask, batch.capacity)
        return PackedClicks(packing.to_rows(items), packing)

    def with_trend(self, vectors: Tensor, when: Tensor | None = None) -> Tensor:
        """The vectors of all items with the columns of the trend."""
        if self.trends is None:
            return vectors
        return torch.cat([vectors, self.trends.of_items(when)], 1)

    def vector_parts(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The terms of Eq. (10) by name, scaled as the session vector is; they add up to it."""
        clicks = self.clicks_of(batch)
        _, terms = self.reader(self.click_vectors(clicks.items), clicks)
        h = sum_of(terms)
        scaled = [self.scaled(term, h) for term in terms]
        parts = dict(zip(INTENTIONS, scaled, strict=True))
        if self.trends is None:
            return parts
        for name, part in parts.items():
            parts[name] = functional.pad(part, (0, COLUMNS))
        nothing = torch.zeros_like(scaled[0])
        parts["trend"] = self.trends.with_moments(nothing, None)
        return parts

    def click_attention(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The attention of both intentions in the last Transformer layer, and r of the repeat part,
        at the latest click on each item; [B, L] each."""
        clicks = self.clicks_of(batch)
        attention = self.reader.attention(self.click_vectors(clicks.items), clicks)
        own_items = self.sessions_and_own_items(batch)[1]
        if own_items is not None:
            attention[REPEAT] = own_items.repeat_shares
        return attention


def sum_of(terms: Terms) -> Tensor:
    """h [Q, d], Eq. (10)."""
    last_item, latest, initial = terms
    return last_item + latest + initial
