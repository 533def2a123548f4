"""The reader of posrec-plus: one pass over the clicks of sessions, which gives the intentions at
every click.

    x'_j = GRU(x_j, x_{j-1})                                             `Message`, in place of Eq. (7)-(8)
    y_j  = x'_j + F[j] + C[c_j]          c_j: clicks on j's item so far, at most 5
    H_i  = Transformer, asked by y_i and reading y_j of j <= i           Eq. (9), its row of the last click
    G_i  = its attention, asked by the first click, y_0 + B[i]           Eq. (9), its row of the first click
    h_i  = x'_i + H_i + sigmoid(W H_i) G_i                               Eq. (10), whose last term is gated here

Everything at click i depends on the clicks up to i alone. F and B are the two parts of the
positional encoding (`encodings/split.py`): where click i reads click j, they add up to the encoding
of position j of i + 1.

    T clicks in all, Q clicks i that are asked for, W distances, d dimensions.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.encodings.schemes import learned_table, look_up, make_encoding
from posrec.encodings.split import require_split, split
from posrec.models.seen_clicks import Returns, SeenClicks
from posrec.nn.layers.gated_graph import gru_update
from posrec.nn.layers.transformer import TransformerLayer, has_kernel, kernel_attention
from posrec.nn.packing import Packing, constants

PARTS = ("last item", "latest intention", "initial intention")  # of Eq. (10)
MOST_CLICKS = 5  # on one item of a session; more count as so many
SUMS_SIDE_BY_SIDE = 16  # parts of the rows of a product on a GPU


@dataclass(frozen=True)
class Clicks:
    """The clicks of a batch."""

    packing: Packing
    every: SeenClicks  # all clicks
    asked: SeenClicks  # those that are asked for
    returned: Returns  # of all clicks
    numbers: Tensor  # [T] item numbers, 0 for unknown items


@dataclass(frozen=True)
class Intentions:
    hidden: Tensor  # [T, d] H of every click
    parts: tuple[
        Tensor, Tensor, Tensor
    ]  # [Q, d] the terms of Eq. (10), by the names of PARTS


class Message(nn.Module):
    """x'_j = GRU(x_j, x_{j-1}): x [T, d] -> x' [T, d]. At the first click the message is 0.

    It is the message of the session graph, Eq. (7), along the edge into click j. W_in is part of
    the GRU's weights."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.of_click = nn.Linear(d, 3 * d)
        self.of_message = nn.Linear(d, 3 * d)

    def forward(self, x: Tensor, every: SeenClicks) -> Tensor:
        before = torch.where(every.place[:, None] > 0, x.roll(1, 0), 0)
        return gru_update(x, self.of_click(x), self.of_message(before))


@dataclass(frozen=True)
class ReadClicks:
    """What a layer reads of the clicks: keys and values side by side."""

    of_clicks: Tensor  # [T, 2d] K || V
    of_distances: Tensor  # [W, 2d] B W_k || B W_v
    bias: Tensor | None  # [heads, W]


class CausalLayer(TransformerLayer):
    """A Transformer layer in which click i reads the clicks j <= i, by their distance: `project`
    what is read, then `forward` what asks. B is the backward part of the positional encoding, s a
    learned number of each head:

        a_ij = softmax over j <= i of (q_i (k_j + W_k B[i - j]) / sqrt(d_head) + bias[i - j] + s [same item])
        A_i  = sum_j a_ij (v_j + W_v B[i - j])                        q = W_q x,  k = W_k y,  v = W_v y
        x1   = LayerNorm(x + A W_o)                                   `forward`
        x2   = LayerNorm(x1 + W_2 relu(W_1 x1))                       `fed_forward`

    Other vectors may ask in place of x_i: A vectors at each of Q clicks.
    """

    def __init__(self, d: int, heads: int, width: int, dropout: float = 0.0) -> None:
        super().__init__(d, heads, width, dropout)
        self.same_item = nn.Parameter(torch.zeros(heads))  # s

    def project(self, y: Tensor, backward: Tensor, bias: Tensor | None) -> ReadClicks:
        """y [T, d] of all clicks, backward [W, d]: B, bias [heads, W]."""
        to_both, of_both = (part[self.d :] for part in self.projections)
        return ReadClicks(
            functional.linear(y, to_both, of_both),
            functional.linear(backward, to_both),
            bias,
        )

    @property
    def projections(self) -> tuple[Tensor, Tensor]:
        return self.queries_keys_values.weight, self.queries_keys_values.bias

    def keys_and_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[R, 2d] -> two of [R, heads, d_head]."""
        keys, values = rows.view(-1, 2, self.heads, self.d_head).unbind(1)
        return keys, values

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        same: Tensor,
        read: ReadClicks,
        clicks: SeenClicks,
        packing: Packing,
    ) -> Tensor:
        """x [Q, A, d] of what asks; same [Q, A, W]: 1 where a seen click has its item, else 0 -> x1
        [Q, A, d]."""
        queries, near = self.asked(x, same, read, packing)
        near_values = self.keys_and_values(read.of_distances)[1][: packing.longest]
        if clicks.is_every and has_kernel(x[:, 0], packing, None, self.heads):
            attended, weights = kernel_attention(
                queries.flatten(1),
                read.of_clicks,
                near,
                self.heads,
                packing,
                self.dropout,
                causal=True,
            )
            attended = attended.view_as(x) + by_head(
                weights, near_values.transpose(0, 1)
            ).flatten(2)
        else:
            keys, values = self.in_slots(read.of_clicks, packing)
            weights = self.dropout(
                attention_weights(queries, keys, near, clicks, packing)
            )
            one_after_other = weights.view(
                packing.sessions, self.heads, -1, packing.longest
            )  # [B, heads, I A, L]
            sums = one_after_other @ values
            sums = sums.view(
                packing.sessions, self.heads, -1, *constants(x.shape[1:2]), self.d_head
            )
            sums = sums + torch.einsum(
                "bhiaw,whe->bhiae", by_distance(weights, clicks, packing), near_values
            )
            attended = from_slots(sums, clicks, packing)
        return self.with_attended(x.flatten(0, 1), attended.flatten(0, 1)).view(
            -1, *constants(x.shape[1:])
        )

    def attention(  # type: ignore[override]
        self,
        x: Tensor,
        same: Tensor,
        read: ReadClicks,
        clicks: SeenClicks,
        packing: Packing,
    ) -> Tensor:
        """The attention weights, for explanations: [Q, A, heads, L], by the place of the click that
        is read."""
        queries, near = self.asked(x, same, read, packing)
        keys, _ = self.in_slots(read.of_clicks, packing)
        weights = attention_weights(queries, keys, near, clicks, packing)
        return torch.unflatten(
            from_slots(weights, clicks, packing), 2, (self.heads, -1)
        )

    def asked(
        self, x: Tensor, same: Tensor, read: ReadClicks, packing: Packing
    ) -> tuple[Tensor, Tensor]:
        """Queries [Q, A, heads, d_head], and what the distance adds to the logits, [Q, A, heads,
        W]."""
        to_query, of_query = (part[: self.d] for part in self.projections)
        queries = functional.linear(x, to_query, of_query).view(
            -1, *constants(x.shape[1:2]), self.heads, self.d_head
        )
        near_keys = self.keys_and_values(read.of_distances)[0].permute(
            1, 2, 0
        ) / math.sqrt(self.d_head)
        near = by_head(queries, near_keys)[..., : packing.longest]
        near = near + same[:, :, None] * self.same_item[:, None]
        return queries, near if read.bias is None else near + read.bias[
            :, : packing.longest
        ]

    def in_slots(self, rows: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """K || V [T, 2d] -> two of [B, heads, L, d_head]."""
        slots = packing.to_slots(rows).view(
            packing.sessions, packing.longest, 2, self.heads, self.d_head
        )
        keys, values = slots.unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)


def by_head(x: Tensor, factors: Tensor) -> Tensor:
    """x [Q, A, heads, m], factors [heads, m, n] -> [Q, A, heads, n].

    The gradient of `factors` is a sum over all rows of x, which few units of a GPU would compute
    one after the other. So the rows are cut into parts, and the sums of the parts are computed side
    by side."""
    parts = SUMS_SIDE_BY_SIDE if x.is_cuda and len(x) % SUMS_SIDE_BY_SIDE == 0 else 1
    askers, heads, width = constants(x.shape[1:])
    rows = x.reshape(parts, -1, heads, width).transpose(1, 2)  # [parts, heads, rows, m]
    products = torch.matmul(
        rows, factors.expand(parts, -1, -1, -1) if parts > 1 else factors
    )
    return products.transpose(1, 2).reshape(
        -1, askers, heads, *constants(factors.shape[2:])
    )


# Without the kernel, attention is computed in slots: B sessions of L places, in each of which I
# clicks are asked for: all L, or the last.


def attention_weights(
    queries: Tensor, keys: Tensor, near: Tensor, clicks: SeenClicks, packing: Packing
) -> Tensor:
    """[B, heads, I, A, L]."""
    distance = distances(clicks, packing)[:, None, :, None]
    asking, near = (
        packing.to_slots(part) if clicks.is_every else part[:, None]
        for part in (queries, near)
    )
    asking, near = (
        part.permute(0, 3, 1, 2, 4) for part in (asking, near)
    )  # [B, heads, I, A, ...]
    askers, heads, d_head = constants(queries.shape[1:])
    logits = asking.reshape(packing.sessions, heads, -1, d_head) @ keys.transpose(2, 3)
    logits = logits.view(
        packing.sessions, heads, -1, askers, packing.longest
    ) / math.sqrt(d_head)
    logits = logits + near.gather(4, distance.clamp(min=0).expand_as(near))
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1)


def by_distance(weights: Tensor, clicks: SeenClicks, packing: Packing) -> Tensor:
    """[B, heads, I, A, L] -> [B, heads, I, A, W], with 0 at distances where there is no click."""
    distance = torch.arange(packing.longest, device=weights.device)
    place = (
        distances(clicks, packing)[:, :, :1] - distance
    )  # [B or 1, I, W] of the click at each distance
    place = place[:, None, :, None]
    return weights.gather(4, place.clamp(min=0).expand_as(weights)).masked_fill(
        place < 0, 0
    )


def distances(clicks: SeenClicks, packing: Packing) -> Tensor:
    """[B or 1, I, L] how far before an asking click each place is; below 0 for places after it."""
    place = torch.arange(packing.longest, device=clicks.place.device)
    asking = place[None] if clicks.is_every else clicks.place[:, None]
    return asking[:, :, None] - place


def from_slots(slots: Tensor, clicks: SeenClicks, packing: Packing) -> Tensor:
    """[B, heads, I, A, c] -> [Q, A, heads c]."""
    _, heads, _, askers, width = slots.shape
    heads, askers, width = constants([heads, askers, width])
    slots = slots.permute(0, 2, 3, 1, 4).reshape(
        packing.sessions, -1, askers * heads * width
    )  # [B, I, A heads c]
    rows = packing.to_rows(slots) if clicks.is_every else slots[:, 0]
    return rows.view(-1, askers, heads * width)


@dataclass(frozen=True)
class State:
    """What the next layer reads, and what asks."""

    hidden: Tensor  # [T, d] of every click: it is read, and asks
    initial: Tensor  # [Q, d] of the first click, asking in place of each click that is asked for
    same: Tensor  # [T, W] 1 where a seen click has the item of the click that asks
    same_as_first: Tensor  # [Q, W] likewise for the first click
    backward: Tensor  # [W, d] B
    bias: Tensor | None  # [heads, W]

    def read_by(self, layer: CausalLayer) -> ReadClicks:
        return layer.project(self.hidden, self.backward, self.bias)

    def after(self, layer: CausalLayer, clicks: Clicks) -> "State":
        read = self.read_by(layer)
        packing = clicks.packing
        if clicks.asked.is_every:  # both ask at the same clicks, so they do at once
            asking = torch.stack([self.hidden, self.initial], 1)
            same = torch.stack([self.same, self.same_as_first], 1)
            hidden, initial = layer(asking, same, read, clicks.every, packing).unbind(1)
        else:
            hidden = layer(
                self.hidden[:, None], self.same[:, None], read, clicks.every, packing
            )[:, 0]
            initial = layer(
                self.initial[:, None],
                self.same_as_first[:, None],
                read,
                clicks.asked,
                packing,
            )[:, 0]
        hidden = layer.fed_forward(hidden)
        return State(
            hidden, initial, self.same, self.same_as_first, self.backward, self.bias
        )


def same_item(asking: Tensor, numbers: Tensor, clicks: SeenClicks) -> Tensor:
    """asking [Q] and numbers [T] of items -> [Q, W] 1 where the seen click is on the same item,
    else 0."""
    return (clicks.of(numbers) == asking[:, None]).float()


class SessionReader(nn.Module):
    """x [T, d] -> Intentions. The weights are those of the paper's encoder where they have the same
    part in it."""

    def __init__(self, config: Any) -> None:
        """`config` is a PosRecPlusConfig."""
        super().__init__()
        d = config.d
        heads = config.heads
        encoding = config.encoding
        self.max_length = config.max_length
        self.message = Message(d) if config.message else None
        self.encoding = make_encoding(encoding, d, self.max_length, heads)
        self.clicks = learned_table(MOST_CLICKS + 1, d)  # C
        layers = (
            CausalLayer(d, heads, config.feed_forward * d, config.dropout)
            for _ in range(config.layers)
        )
        self.transformer = nn.ModuleList(layers)
        self.gate = nn.Linear(d, d) if config.initial else None
        if not self.clicks.is_meta:
            require_split(self.encoding, encoding, self.max_length)

    def forward(self, x: Tensor, clicks: Clicks) -> Intentions:
        updated, state = self.placed(x, clicks)
        for layer in self.transformer:
            state = state.after(cast(CausalLayer, layer), clicks)
        latest = clicks.asked.at(state.hidden)
        initial = (
            torch.zeros_like(latest)
            if self.gate is None
            else torch.sigmoid(self.gate(latest)) * state.initial
        )
        return Intentions(state.hidden, (clicks.asked.at(updated), latest, initial))

    def placed(self, x: Tensor, clicks: Clicks) -> tuple[Tensor, "State"]:
        """x [T, d] -> x' [T, d], and what the Transformer's first layer reads and what asks."""
        every = clicks.every
        asked = clicks.asked
        numbers = clicks.numbers
        updated = x if self.message is None else self.message(x, every)
        # Of all places, so that an exported network holds the tables instead of computing them for
        # its sessions.
        parts = split(self.encoding, max(self.max_length, clicks.packing.longest))
        hidden = (
            updated
            + look_up(parts.forward, every.place)
            + look_up(self.clicks, clicks.returned.clicks)
        )
        initial = hidden[asked.first] + look_up(parts.backward, asked.place)
        same = (
            same_item(numbers, numbers, every),
            same_item(numbers[asked.first], numbers, asked),
        )
        return updated, State(hidden, initial, *same, parts.backward, parts.bias)

    def attention(self, x: Tensor, clicks: Clicks) -> dict[str, Tensor]:
        """The attention of the latest and the initial intention in the last layer, the mean over
        heads, by the place of the click that is read; [Q, L] each."""
        _, state = self.placed(x, clicks)
        found = {}
        for layer in self.transformer:
            layer = cast(CausalLayer, layer)
            asking = torch.stack([clicks.asked.at(state.hidden), state.initial], 1)
            same = torch.stack([clicks.asked.at(state.same), state.same_as_first], 1)
            weights = layer.attention(
                asking, same, state.read_by(layer), clicks.asked, clicks.packing
            ).mean(2)
            found = dict(
                zip(
                    PARTS[1:] if self.gate is not None else PARTS[1:2],
                    weights.unbind(1),
                    strict=False,
                )
            )
            state = state.after(layer, clicks)
        return found
