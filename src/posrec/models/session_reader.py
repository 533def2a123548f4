"""The reader of posrec-plus: one pass over the clicks of sessions, with the intentions at each.

Everything at click i depends on the clicks up to i alone. `SessionReader` states the equations.
A click asks with two queries: its own, and that of the first click. Shapes: [..., d] of every
click, in one of the layouts of clicks.py, Q clicks at which vectors are asked for, W distances;
without the kernel, attention is computed in slots: B sessions of L positions, with R queries."""

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
        """x -> x1, of the queries that `clicks.joined` joins."""
        queries = self.queries(x)
        if isinstance(clicks, PackedClicks) and has_kernel(
            x[:, 0], clicks.packing, None, self.heads
        ):
            attended = self.attended_by_kernel(queries, read, clicks)
        else:
            attended = self.attended_in_slots(queries, read, clicks)
        return self.with_attended(x, attended)

    def queries(self, x: Tensor) -> Tensor:
        """q [..., d]."""
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
        """A [T, 2, d]."""
        longest = clicks.longest
        keys, values = self.near_keys_and_values(read)
        near_keys = keys[:, :longest].transpose(1, 2) / math.sqrt(self.d_head)
        by_heads = queries.view(*queries.shape[:2], self.heads, self.d_head)
        near = by_head(by_heads, near_keys)  # [T, 2, heads, W]
        items = clicks.items
        asking = torch.stack([items, items[clicks.first_row]], 1)
        same = (clicks.seen(items)[:, None] == asking[:, :, None]).to(near.dtype)
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
        """A of the queries."""
        keys, values = torch.split(clicks.to_slots(read.of_clicks), self.d, 2)
        weights, index = self.attention_in_slots(queries, keys, read, clicks)
        weights = self.dropout(weights)
        _, near_values = self.near_keys_and_values(read)
        sums = weights @ self.split_heads(values)
        near = near_values[:, : clicks.longest]
        sums = sums + by_head_in_slots(weights.gather(3, index), near)
        slots = sums.transpose(1, 2)  # [B, R, heads, d_head]
        return clicks.queries_to_rows(slots.reshape(*slots.shape[:2], self.d))

    def attention_in_slots(
        self, queries: Tensor, keys: Tensor, read: ReadClicks, clicks: Clicks
    ) -> tuple[Tensor, Tensor]:
        """softmax_j(a_ij), [B, heads, R, L], and the index that orders it by distance; `keys` is
        [B, L, d]."""
        asking = self.split_heads(clicks.queries_to_slots(queries))
        near_keys, _ = self.near_keys_and_values(read)
        near_keys = near_keys[:, : clicks.longest].transpose(1, 2)
        near = by_head_in_slots(asking, near_keys)
        # The same index turns distances into positions and positions into distances. Those that
        # do not exist become later positions, whose weight is 0.
        apart = clicks.query_slot[:, None, :, None] - clicks.slot  # [1 or B, 1, R, L]
        index = apart % clicks.longest
        index_of_all = index.expand_as(near)
        logits = asking @ self.split_heads(keys).transpose(2, 3)
        logits = (logits + near.gather(3, index_of_all)) / math.sqrt(self.d_head)
        same = clicks.same_in_slots()[:, clicks.query_item]  # [B, R, L]
        logits = logits + self.same_item[:, None, None] * same[:, None]
        if read.bias is not None:
            logits = logits + read.bias[:, index[:, 0]].transpose(0, 1)
        return logits.masked_fill(apart < 0, -math.inf).softmax(-1), index_of_all

    def split_heads(self, slots: Tensor) -> Tensor:
        """[B, R, d] -> [B, heads, R, d_head]."""
        by_head = slots.view(*slots.shape[:2], self.heads, self.d_head)
        return by_head.transpose(1, 2)


def by_head_in_slots(x: Tensor, factors: Tensor) -> Tensor:
    """x [B, heads, R, m], factors [heads, m, n] -> [B, heads, R, n]."""
    if is_traced():
        return x @ factors  # one operation, for which torch copies the factors
    return torch.einsum("bhrm,hmn->bhrn", x, factors)


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
    initial: (
        Tensor  # of the first click, the second query at the clicks that are asked for
    )
    backward: Tensor  # [W, d] B
    bias: Tensor | None  # [heads, W]

    def asked_by(self, layer: CausalLayer, clicks: Clicks) -> tuple[Tensor, ReadClicks]:
        """The queries of a layer, and what it reads."""
        asking = clicks.joined(self.hidden, self.initial)
        return asking, layer.project(self.hidden, self.backward, self.bias)

    def after(self, layer: CausalLayer, clicks: Clicks) -> "State":
        asking, read = self.asked_by(layer, clicks)
        hidden, initial = clicks.parted(layer(asking, read, clicks))
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
        last_item, latest = clicks.asked(updated, state.hidden)
        if self.gate is None:
            initial = torch.zeros_like(latest)
        else:
            initial = clicks.of_asked(state.initial) * torch.sigmoid(self.gate(latest))
        return state.hidden, (last_item, latest, initial)

    def first_state(self, x: Tensor, clicks: Clicks) -> tuple[Tensor, State]:
        """x -> x', and what the Transformer's first layer reads."""
        updated = x if self.message is None else self.message(x, clicks)
        # Of all positions, so that an exported network holds the tables instead of computing them
        # for its sessions.
        encoding = split(self.encoding, max(self.max_length, clicks.longest))
        hidden = updated + clicks.by_position(encoding.forward)
        hidden = hidden + look_up(self.clicks, clicks.times)
        initial = clicks.of_first(hidden, encoding.backward)
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
        asking, read = state.asked_by(last, clicks)
        keys = clicks.to_slots(read.of_clicks)[:, :, : last.d]
        weights, _ = last.attention_in_slots(last.queries(asking), keys, read, clicks)
        latest, initial = clicks.parted(weights.mean(1))  # [B, L, L] and [B, 1, L]
        attention = {INTENTIONS[1]: clicks.asked(latest)[0]}
        if self.gate is not None:
            attention[INTENTIONS[2]] = clicks.of_asked(initial)
        return attention
