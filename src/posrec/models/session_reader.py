"""The reader of posrec-plus: one pass over the clicks of sessions, with the intentions at each.

Everything at click i depends on the clicks up to i alone. `SessionReader` states the equations.
Shapes: [..., d] of every click, in one of the layouts of clicks.py, Q clicks at which vectors are
asked for, W distances; without the kernel, attention is computed in slots: B sessions of L
positions. A click asks with A = 2 queries: its own, and that of the first click."""

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.encodings.schemes import learned_table, look_up, make_encoding
from posrec.encodings.split import require_split, split
from posrec.models.clicks import Clicks, PackedClicks
from posrec.models.posrec import INTENTIONS
from posrec.nn.layers.gated_graph import gru_update
from posrec.nn.layers.transformer import TransformerLayer, has_kernel, kernel_attention
from posrec.nn.packing import is_traced

Terms = tuple[Tensor, Tensor, Tensor]  # of Eq. (10), [Q, d] each, see INTENTIONS
MOST_CLICKS = 5  # more clicks on one item of a session count as this many
SUMS_SIDE_BY_SIDE = 16  # chunks of the rows of a product on a GPU


class Message(nn.Module):
    """x'_j = GRU(x_j, x_{j-1}): x [..., d] -> x' [..., d]. At the first click the message is 0. It
    is that of the session graph, Eq. (7), along the edge into click j, with W_in in the GRU's
    weights."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.of_click = nn.Linear(d, 3 * d)
        self.of_message = nn.Linear(d, 3 * d)

    def forward(self, x: Tensor, clicks: Clicks) -> Tensor:
        return gru_update(x, self.of_click(x), self.of_message(clicks.before(x)))


@dataclass(frozen=True)
class ReadClicks:
    """What a layer reads of the clicks: keys and values side by side."""

    of_clicks: Tensor  # [..., 2d] K || V
    of_distances: Tensor  # [W, 2d] B W_k || B W_v
    bias: Tensor | None  # [heads, W]


class CausalLayer(TransformerLayer):
    """A Transformer layer in which click i reads the clicks j <= i, by their distance. B is the
    backward part of the positional encoding, s a learned number of each head:

        k, v = W_k y, W_v y                                 `project`
        q    = W_q x        of x_i, or of other vectors that ask in its place
        a_ij = q_i (k_j + W_k B[i - j]) / sqrt(d_head) + bias[i - j] + s [same item]
        A_i  = sum_j softmax_j(a_ij) (v_j + W_v B[i - j])   over j <= i
        x1   = LayerNorm(x + A W_o)                         `forward`
        x2   = LayerNorm(x1 + W_2 relu(W_1 x1))             `fed_forward`
    """

    def __init__(self, d: int, heads: int, width: int, dropout: float = 0.0) -> None:
        super().__init__(d, heads, width, dropout)
        self.same_item = nn.Parameter(torch.zeros(heads))  # s

    def project(self, y: Tensor, backward: Tensor, bias: Tensor | None) -> ReadClicks:
        """y [..., d] of all clicks, backward [W, d]: B, bias [heads, W]."""
        weight = self.queries_keys_values.weight[self.d :]
        weight_bias = self.queries_keys_values.bias[self.d :]
        of_clicks = functional.linear(y, weight, weight_bias)
        return ReadClicks(of_clicks, functional.linear(backward, weight), bias)

    def forward(  # type: ignore[override]
        self, x: Tensor, read: ReadClicks, clicks: Clicks
    ) -> Tensor:
        """x -> x1, [..., A, d]."""
        queries = self.queries(x)
        if isinstance(clicks, PackedClicks) and has_kernel(
            x[:, 0], clicks.packing, None, self.heads
        ):
            attended = self.attended_by_kernel(queries, read, clicks)
        else:
            attended = self.attended_in_slots(queries, read, clicks)
        return self.with_attended(x, attended)

    def queries(self, x: Tensor) -> Tensor:
        """q [..., A, d]."""
        weight = self.queries_keys_values.weight[: self.d]
        bias = self.queries_keys_values.bias[: self.d]
        return functional.linear(x, weight, bias)

    def near_keys_and_values(self, read: ReadClicks) -> tuple[Tensor, Tensor]:
        """W_k B and W_v B of all distances, [heads, W, d_head] each."""
        by_head = read.of_distances.view(-1, 2, self.heads, self.d_head)
        keys, values = by_head.permute(1, 2, 0, 3)
        return keys, values

    def attended_by_kernel(
        self, queries: Tensor, read: ReadClicks, clicks: PackedClicks
    ) -> Tensor:
        """A [T, A, d]."""
        longest = clicks.longest
        keys, values = self.near_keys_and_values(read)
        near_keys = keys[:, :longest].transpose(1, 2) / math.sqrt(self.d_head)
        by_heads = queries.view(*queries.shape[:2], self.heads, self.d_head)
        near = by_head(by_heads, near_keys)  # [T, A, heads, W]
        numbers = clicks.numbers
        asking = torch.stack([numbers, clicks.of_first(numbers)], 1)
        same = (clicks.seen(numbers)[:, None] == asking[:, :, None]).to(near.dtype)
        near = near + same[:, :, None] * self.same_item[:, None]
        if read.bias is not None:
            near = near + read.bias[:, :longest]
        of_clicks, weights = kernel_attention(
            queries.flatten(1),
            read.of_clicks,
            near,
            self.heads,
            clicks.packing,
            self.dropout,
            causal=True,
        )
        of_distances = by_head(weights, values[:, :longest]).flatten(2)
        return of_clicks.view_as(of_distances) + of_distances

    def attended_in_slots(
        self, queries: Tensor, read: ReadClicks, clicks: Clicks
    ) -> Tensor:
        """A [..., A, d]."""
        keys, values = torch.split(self.in_slots(read.of_clicks, clicks), 1, 2)
        weights, index = self.attention_in_slots(queries, keys, read, clicks)
        weights = self.dropout(weights)
        _, near_values = self.near_keys_and_values(read)
        near_values = near_values[None, :, None, : clicks.longest]
        sums = by_session(weights, values)
        sums = sums + by_session(weights.gather(4, index), near_values)
        slots = sums.permute(0, 3, 2, 1, 4)  # [B, L, A, heads, d_head]
        return clicks.to_rows(slots.reshape(*slots.shape[:3], self.d))

    def attention_in_slots(
        self, queries: Tensor, keys: Tensor, read: ReadClicks, clicks: Clicks
    ) -> tuple[Tensor, Tensor]:
        """softmax_j(a_ij), [B, heads, A, L, L], and the index that orders it by distance; `keys` is
        [B, heads, 1, L, d_head]."""
        asking = self.in_slots(queries, clicks)
        near_keys, _ = self.near_keys_and_values(read)
        near_keys = near_keys[None, :, None, : clicks.longest]
        near = by_session(asking, near_keys.transpose(3, 4))
        # The same index turns distances into positions and positions into distances. Those that
        # do not exist become later positions, whose weight is 0.
        apart = clicks.slot[:, None] - clicks.slot
        index = apart % clicks.longest
        index_of_all = index.expand_as(near)
        near = near.gather(4, index_of_all)
        logits = by_session(asking, keys.transpose(3, 4)) + near
        logits = logits / math.sqrt(self.d_head)
        item_of_query = clicks.slot * clicks.slot.new_tensor([[[1], [0]]])
        same = clicks.same_in_slots()[:, item_of_query]  # [B, 1, A, L, L]
        logits = logits + self.same_item[:, None, None, None] * same
        if read.bias is not None:
            logits = logits + read.bias[:, index][:, None]
        weights = logits.masked_fill(apart < 0, -math.inf).softmax(-1)
        return weights, index_of_all

    def in_slots(self, x: Tensor, clicks: Clicks) -> Tensor:
        """[..., A, d] or [..., A d] -> [B, heads, A, L, d_head]."""
        slots = clicks.to_slots(x)
        by_head = slots.view(*slots.shape[:2], -1, self.heads, self.d_head)
        return by_head.permute(0, 3, 2, 1, 4)


def by_session(x: Tensor, factors: Tensor) -> Tensor:
    """x [B, heads, A, L, m], factors [1 or B, heads, 1, m, n] -> [B, heads, A, L, n]."""
    if is_traced():
        return x @ factors  # one operation, for which torch copies the factors
    return torch.einsum("bhaim,bhmn->bhain", x, factors[:, :, 0])


def by_head(x: Tensor, factors: Tensor) -> Tensor:
    """x [Q, A, heads, m], factors [heads, m, n] -> [Q, A, heads, n].

    The gradient of `factors` is a sum over all rows of x, for which a GPU would use few of its
    units. So the rows are cut into chunks, whose sums are computed side by side."""
    chunks = SUMS_SIDE_BY_SIDE if len(x) % SUMS_SIDE_BY_SIDE == 0 else 1
    askers, heads, width = x.shape[1:]
    rows = x.reshape(chunks, -1, heads, width).transpose(1, 2)  # [chunks, heads, R, m]
    if chunks > 1:
        factors = factors.expand(chunks, -1, -1, -1)
    products = torch.matmul(rows, factors)
    return products.transpose(1, 2).reshape(-1, askers, heads, factors.shape[-1])


@dataclass(frozen=True)
class State:
    """What the next layer reads, and its queries."""

    hidden: Tensor  # [..., d] of every click: it is read, and it is a query
    initial: Tensor  # [..., d] of the first click, the second query at every click
    backward: Tensor  # [W, d] B
    bias: Tensor | None  # [heads, W]

    def asked_by(self, layer: CausalLayer) -> tuple[Tensor, ReadClicks]:
        """The queries [..., A, d] of a layer, and what it reads."""
        asking = torch.stack([self.hidden, self.initial], -2)
        return asking, layer.project(self.hidden, self.backward, self.bias)

    def after(self, layer: CausalLayer, clicks: Clicks) -> "State":
        asking, read = self.asked_by(layer)
        hidden, initial = layer(asking, read, clicks).unbind(-2)
        return replace(self, hidden=layer.fed_forward(hidden), initial=initial)


class SessionReader(nn.Module):
    """x -> H, [..., d] of every click, and the terms of h_i at each click i that is asked for:

        x'_j = GRU(x_j, x_{j-1})              in place of Eq. (7), (8)
        y_j  = x'_j + F[j] + C[c_j]           c_j: clicks on j's item so far, at most MOST_CLICKS
        H_i  = Transformer, asked by y_i and reading y_j of j <= i     Eq. (9), last click's row
        G_i  = its attention, asked by the first click, y_0 + B[i]     Eq. (9), first click's row
        h_i  = x'_i + H_i + sigmoid(W H_i) G_i                         Eq. (10), last term gated

    F and B are the two parts of the positional encoding (`encodings/split.py`): where click i reads
    click j, they add up to the encoding of position j of i + 1.
    """

    def __init__(self, config: Any) -> None:
        """`config` is a PosRecPlusConfig."""
        super().__init__()
        d = config.d
        self.max_length = config.max_length
        self.message = Message(d) if config.message else None
        self.encoding = make_encoding(
            config.encoding, d, config.max_length, config.heads
        )
        self.clicks = learned_table(MOST_CLICKS + 1, d)  # C
        self.transformer = nn.ModuleList(
            CausalLayer(d, config.heads, config.feed_forward * d, config.dropout)
            for _ in range(config.layers)
        )
        self.gate = nn.Linear(d, d) if config.initial else None
        if not self.clicks.is_meta:
            require_split(self.encoding, config.encoding, config.max_length)

    def forward(self, x: Tensor, clicks: Clicks) -> tuple[Tensor, Terms]:
        updated, state = self.first_state(x, clicks)
        for layer in self.transformer:
            state = state.after(cast(CausalLayer, layer), clicks)
        asked = clicks.asked(updated, state.hidden, state.initial)
        last_item, latest, initial = asked
        if self.gate is None:
            initial = torch.zeros_like(latest)
        else:
            initial = initial * torch.sigmoid(self.gate(latest))
        return state.hidden, (last_item, latest, initial)

    def first_state(self, x: Tensor, clicks: Clicks) -> tuple[Tensor, State]:
        """x -> x', and what the Transformer's first layer reads."""
        updated = x if self.message is None else self.message(x, clicks)
        # Of all positions, so that an exported network holds the tables instead of computing them
        # for its sessions.
        encoding = split(self.encoding, max(self.max_length, clicks.longest))
        hidden = updated + clicks.by_position(encoding.forward)
        hidden = hidden + look_up(self.clicks, clicks.times)
        initial = clicks.of_first(hidden) + clicks.by_position(encoding.backward)
        return updated, State(hidden, initial, encoding.backward, encoding.bias)

    def attention(self, x: Tensor, clicks: Clicks) -> dict[str, Tensor]:
        """The attention of both intentions in the last layer, the mean over heads; [B, L] each, of
        the last click of sessions that are not packed."""
        if not self.transformer:
            return {}
        *layers, last = (cast(CausalLayer, layer) for layer in self.transformer)
        _, state = self.first_state(x, clicks)
        for layer in layers:
            state = state.after(layer, clicks)
        asking, read = state.asked_by(last)
        keys = last.in_slots(read.of_clicks, clicks)[:, :, :1]
        weights, _ = last.attention_in_slots(last.queries(asking), keys, read, clicks)
        latest, initial = clicks.asked(*weights.mean(1).unbind(1))  # [B, L] each
        attention = {INTENTIONS[1]: latest}
        if self.gate is not None:
            attention[INTENTIONS[2]] = initial
        return attention
