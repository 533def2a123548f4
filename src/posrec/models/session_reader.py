"""The reader of posrec-plus: one pass over the clicks of sessions, with the intentions at each.

Everything at click i depends on the clicks up to i alone. `SessionReader` states the equations.
Shapes: T clicks in all, Q clicks at which vectors are asked for, A queries at each of them, W
distances, d dimensions; without the kernel, attention is computed in slots: B sessions of L
positions, at I of which vectors are asked for, all L or the last."""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.encodings.schemes import learned_table, look_up, make_encoding
from posrec.encodings.split import require_split, split
from posrec.models.posrec import INTENTIONS
from posrec.models.seen_clicks import Returns, SeenClicks
from posrec.nn.layers.gated_graph import gru_update
from posrec.nn.layers.transformer import TransformerLayer, has_kernel, kernel_attention
from posrec.nn.packing import Packing, constants

Terms = tuple[Tensor, Tensor, Tensor]  # of Eq. (10), [Q, d] each, see INTENTIONS
MOST_CLICKS = 5  # more clicks on one item of a session count as this many
SUMS_SIDE_BY_SIDE = 16  # chunks of the rows of a product on a GPU


@dataclass(frozen=True)
class Clicks:
    """The clicks of a batch."""

    every: SeenClicks  # all clicks
    asked: SeenClicks  # the clicks at which vectors are asked for
    returned: Returns  # of all clicks
    numbers: Tensor  # [T] item numbers, 0 for unknown items


class Message(nn.Module):
    """x'_j = GRU(x_j, x_{j-1}): x [T, d] -> x' [T, d]. At the first click the message is 0. It is
    that of the session graph, Eq. (7), along the edge into click j, with W_in in the GRU's weights.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.of_click = nn.Linear(d, 3 * d)
        self.of_message = nn.Linear(d, 3 * d)

    def forward(self, x: Tensor, every: SeenClicks) -> Tensor:
        before = torch.where(every.position[:, None] > 0, x.roll(1, 0), 0)
        return gru_update(x, self.of_click(x), self.of_message(before))


@dataclass(frozen=True)
class ReadClicks:
    """What a layer reads of the clicks: keys and values side by side."""

    of_clicks: Tensor  # [T, 2d] K || V
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
        """y [T, d] of all clicks, backward [W, d]: B, bias [heads, W]."""
        weight = self.queries_keys_values.weight[self.d :]
        weight_bias = self.queries_keys_values.bias[self.d :]
        of_clicks = functional.linear(y, weight, weight_bias)
        return ReadClicks(of_clicks, functional.linear(backward, weight), bias)

    def forward(  # type: ignore[override]
        self, x: Tensor, same: Tensor, read: ReadClicks, clicks: SeenClicks
    ) -> Tensor:
        """x [Q, A, d], same [Q, A, W]: 1 where a seen click is on the item of x -> x1 [Q, A, d]."""
        queries, near = self.queries(x, same, read, clicks.packing)
        if clicks.is_every and has_kernel(x[:, 0], clicks.packing, None, self.heads):
            attended = self.attended_by_kernel(queries, near, read, clicks.packing)
        else:
            attended = self.attended_in_slots(queries, near, read, clicks)
        x1 = self.with_attended(x.flatten(0, 1), attended.flatten(0, 1))
        return x1.view(-1, *constants(x.shape[1:]))

    def attended_by_kernel(
        self, queries: Tensor, near: Tensor, read: ReadClicks, packing: Packing
    ) -> Tensor:
        """A [Q, A, d]."""
        near_values = self.keys_and_values(read.of_distances)[1][: packing.longest]
        of_clicks, weights = kernel_attention(
            queries.flatten(1),
            read.of_clicks,
            near,
            self.heads,
            packing,
            self.dropout,
            causal=True,
        )
        of_distances = by_head(weights, near_values.transpose(0, 1)).flatten(2)
        return of_clicks.view_as(of_distances) + of_distances

    def attended_in_slots(
        self, queries: Tensor, near: Tensor, read: ReadClicks, clicks: SeenClicks
    ) -> Tensor:
        """A [Q, A, d]."""
        packing = clicks.packing
        near_values = self.keys_and_values(read.of_distances)[1][: packing.longest]
        keys, values = self.in_slots(read.of_clicks, packing)
        weights = attention_weights(queries, keys, near, clicks)
        weights = self.dropout(weights)
        sessions = packing.sessions
        flat = weights.view(sessions, self.heads, -1, packing.longest)
        sums = flat @ values  # [B, heads, I A, d_head]
        askers = constants(queries.shape[1:2])
        sums = sums.view(sessions, self.heads, -1, *askers, self.d_head)
        distance_weights = by_distance(weights, clicks)
        sums = sums + torch.einsum("bhiaw,whe->bhiae", distance_weights, near_values)
        return from_slots(sums, clicks)

    def attention(  # type: ignore[override]
        self, x: Tensor, same: Tensor, read: ReadClicks, clicks: SeenClicks
    ) -> Tensor:
        """The attention weights, [Q, A, heads, L]."""
        queries, near = self.queries(x, same, read, clicks.packing)
        keys, _ = self.in_slots(read.of_clicks, clicks.packing)
        weights = attention_weights(queries, keys, near, clicks)
        rows = from_slots(weights, clicks)  # [Q, A, heads L]
        return torch.unflatten(rows, 2, (self.heads, -1))

    def queries(
        self, x: Tensor, same: Tensor, read: ReadClicks, packing: Packing
    ) -> tuple[Tensor, Tensor]:
        """q [Q, A, heads, d_head], and `near` [Q, A, heads, W]: what is added to its products with
        the keys."""
        weight = self.queries_keys_values.weight[: self.d]
        weight_bias = self.queries_keys_values.bias[: self.d]
        queries = functional.linear(x, weight, weight_bias)
        askers = constants(x.shape[1:2])
        queries = queries.view(-1, *askers, self.heads, self.d_head)
        near_keys, _ = self.keys_and_values(read.of_distances)
        near_keys = near_keys.permute(1, 2, 0) / math.sqrt(self.d_head)
        near = by_head(queries, near_keys)[..., : packing.longest]
        near = near + same[:, :, None] * self.same_item[:, None]
        if read.bias is not None:
            near = near + read.bias[:, : packing.longest]
        return queries, near

    def keys_and_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[R, 2d] -> two of [R, heads, d_head]."""
        keys, values = rows.view(-1, 2, self.heads, self.d_head).unbind(1)
        return keys, values

    def in_slots(self, rows: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """K || V [T, 2d] -> two of [B, heads, L, d_head]."""
        shape = (packing.sessions, packing.longest, 2, self.heads, self.d_head)
        keys, values = packing.to_slots(rows).view(shape).unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)


def by_head(x: Tensor, factors: Tensor) -> Tensor:
    """x [Q, A, heads, m], factors [heads, m, n] -> [Q, A, heads, n].

    The gradient of `factors` is a sum over all rows of x, for which a GPU would use few of its
    units. So the rows are cut into chunks, whose sums are computed side by side."""
    chunks = SUMS_SIDE_BY_SIDE if x.is_cuda and len(x) % SUMS_SIDE_BY_SIDE == 0 else 1
    askers, heads, width = constants(x.shape[1:])
    columns = constants(factors.shape[2:])
    rows = x.reshape(chunks, -1, heads, width).transpose(1, 2)  # [chunks, heads, R, m]
    if chunks > 1:
        factors = factors.expand(chunks, -1, -1, -1)
    products = torch.matmul(rows, factors)
    return products.transpose(1, 2).reshape(-1, askers, heads, *columns)


def attention_weights(
    queries: Tensor, keys: Tensor, near: Tensor, clicks: SeenClicks
) -> Tensor:
    """[B, heads, I, A, L]."""
    distance = distances(clicks)[:, None, :, None]
    sessions = clicks.packing.sessions
    askers, heads, d_head = constants(queries.shape[1:])
    asking = in_asked_slots(queries, clicks)  # [B, heads, I, A, d_head]
    near = in_asked_slots(near, clicks)  # [B, heads, I, A, W]
    asking = asking.reshape(sessions, heads, -1, d_head)
    logits = asking @ keys.transpose(2, 3)  # [B, heads, I A, L]
    logits = logits.view(sessions, heads, -1, askers, clicks.packing.longest)
    logits = logits / math.sqrt(d_head)
    logits = logits + near.gather(4, distance.clamp(min=0).expand_as(near))
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1)


def in_asked_slots(rows: Tensor, clicks: SeenClicks) -> Tensor:
    """[Q, A, heads, c] -> [B, heads, I, A, c]."""
    slots = clicks.packing.to_slots(rows) if clicks.is_every else rows[:, None]
    return slots.permute(0, 3, 1, 2, 4)


def from_slots(slots: Tensor, clicks: SeenClicks) -> Tensor:
    """[B, heads, I, A, c] -> [Q, A, heads c]."""
    _, heads, _, askers, width = slots.shape
    heads, askers, width = constants([heads, askers, width])
    slots = slots.permute(0, 2, 3, 1, 4)  # [B, I, A, heads, c]
    slots = slots.reshape(clicks.packing.sessions, -1, askers * heads * width)
    rows = clicks.packing.to_rows(slots) if clicks.is_every else slots[:, 0]
    return rows.view(-1, askers, heads * width)


def by_distance(weights: Tensor, clicks: SeenClicks) -> Tensor:
    """[B, heads, I, A, L] -> [B, heads, I, A, W], with 0 at distances without a click."""
    distance = torch.arange(clicks.packing.longest, device=weights.device)
    position = distances(clicks)[:, :, :1] - distance  # [B or 1, I, W]
    position = position[:, None, :, None]
    weights = weights.gather(4, position.clamp(min=0).expand_as(weights))
    return weights.masked_fill(position < 0, 0)


def distances(clicks: SeenClicks) -> Tensor:
    """[B or 1, I, L] how far before an asking click each position is; below 0 after it."""
    position = torch.arange(clicks.packing.longest, device=clicks.position.device)
    asking = position[None] if clicks.is_every else clicks.position[:, None]
    return asking[:, :, None] - position


@dataclass(frozen=True)
class State:
    """What the next layer reads, and its queries."""

    hidden: Tensor  # [T, d] of every click: it is read, and it is a query
    initial: Tensor  # [Q, d] of the first click, the second query at each click that is asked for
    same: Tensor  # [T, W] 1 where a seen click is on the item of the click itself
    same_as_first: Tensor  # [Q, W] 1 where it is on the item of the first click
    backward: Tensor  # [W, d] B
    bias: Tensor | None  # [heads, W]

    def after(self, layer: CausalLayer, clicks: Clicks) -> "State":
        read = layer.project(self.hidden, self.backward, self.bias)
        if clicks.asked.is_every:  # both queries are at the same clicks: one call
            asking = torch.stack([self.hidden, self.initial], 1)
            same = torch.stack([self.same, self.same_as_first], 1)
            hidden, initial = layer(asking, same, read, clicks.every).unbind(1)
        else:
            asking = self.hidden[:, None]
            same = self.same[:, None]
            hidden = layer(asking, same, read, clicks.every)[:, 0]
            asking = self.initial[:, None]
            same = self.same_as_first[:, None]
            initial = layer(asking, same, read, clicks.asked)[:, 0]
        hidden = layer.fed_forward(hidden)
        return State(
            hidden, initial, self.same, self.same_as_first, self.backward, self.bias
        )


def same_item(asking: Tensor, numbers: Tensor, clicks: SeenClicks) -> Tensor:
    """asking [Q] and numbers [T] of items -> [Q, W] 1 where the seen click is on the same item."""
    return (clicks.at_seen(numbers) == asking[:, None]).float()


class SessionReader(nn.Module):
    """x [T, d] -> H [T, d] of every click, and the terms of h_i at each click i that is asked for:

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
        latest = clicks.asked.at(state.hidden)
        if self.gate is None:
            initial = torch.zeros_like(latest)
        else:
            initial = torch.sigmoid(self.gate(latest)) * state.initial
        last_item = clicks.asked.at(updated)
        return state.hidden, (last_item, latest, initial)

    def first_state(self, x: Tensor, clicks: Clicks) -> tuple[Tensor, State]:
        """x [T, d] -> x' [T, d], and what the Transformer's first layer reads."""
        every = clicks.every
        asked = clicks.asked
        numbers = clicks.numbers
        updated = x if self.message is None else self.message(x, every)
        # Of all positions, so that an exported network holds the tables instead of computing them
        # for its sessions.
        encoding = split(self.encoding, max(self.max_length, every.packing.longest))
        hidden = (
            updated
            + look_up(encoding.forward, every.position)
            + look_up(self.clicks, clicks.returned.clicks)
        )
        initial = hidden[asked.first] + look_up(encoding.backward, asked.position)
        same = same_item(numbers, numbers, every)
        same_as_first = same_item(numbers[asked.first], numbers, asked)
        state = State(
            hidden, initial, same, same_as_first, encoding.backward, encoding.bias
        )
        return updated, state

    def attention(self, x: Tensor, clicks: Clicks) -> dict[str, Tensor]:
        """The attention of both intentions in the last layer, the mean over heads; [Q, L] each."""
        if not self.transformer:
            return {}
        *layers, last = (cast(CausalLayer, layer) for layer in self.transformer)
        _, state = self.first_state(x, clicks)
        for layer in layers:
            state = state.after(layer, clicks)
        asking = torch.stack([clicks.asked.at(state.hidden), state.initial], 1)
        same = torch.stack([clicks.asked.at(state.same), state.same_as_first], 1)
        read = last.project(state.hidden, state.backward, state.bias)
        weights = last.attention(asking, same, read, clicks.asked)
        latest, initial = weights.mean(2).unbind(1)
        attention = {INTENTIONS[1]: latest}
        if self.gate is not None:
            attention[INTENTIONS[2]] = initial
        return attention
