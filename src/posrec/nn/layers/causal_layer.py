"""A Transformer layer in which a click reads itself and the clicks before it, by their distance.

Click i of a session asks, with the vector x_i; y_j are the clicks that it reads, B the backward part of the positional
encoding (`encodings/split.py`), s a learned number of each head:

    a_ij = softmax over j <= i of (q_i (k_j + W_k B[i - j]) / sqrt(d_head) + bias[i - j] + s [item of i = item of j])
    A_i  = sum_j a_ij (v_j + W_v B[i - j])                        q = W_q x,  k = W_k y,  v = W_v y
    x1   = LayerNorm(x + A W_o)                                   `forward`
    x2   = LayerNorm(x1 + W_2 relu(W_1 x1))                       `fed_forward`

What is computed at click i does not depend on the clicks after it: it is the same as if the session ended there. Other
vectors may ask in place of that of click i, and read what click i reads.

    T clicks in all, Q clicks at which A vectors ask, W distances, d dimensions.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec import kernels
from posrec.nn.layers.matmul import batched_product
from posrec.nn.layers.transformer import TransformerLayer, has_kernel
from posrec.nn.packing import Packing
from posrec.nn.seen_clicks import SeenClicks

PARTS = 16  # of the rows of a product on a GPU


@dataclass(frozen=True)
class ReadClicks:
    """What a layer reads of the clicks: keys and values side by side."""

    of_clicks: Tensor  # [T, 2d] K || V
    of_distances: Tensor  # [W, 2d] B W_k || B W_v
    bias: Tensor | None  # [heads, W]


class CausalLayer(TransformerLayer):
    """`project` what is read, then `forward` what asks."""

    def __init__(self, d: int, heads: int, width: int, dropout: float = 0.0) -> None:
        super().__init__(d, heads, width, dropout)
        self.same_item = nn.Parameter(torch.zeros(heads))  # s

    def project(self, y: Tensor, backward: Tensor, bias: Tensor | None) -> ReadClicks:
        """y [T, d] of all clicks, backward [W, d]: B, bias [heads, W]."""
        to_both, of_both = (part[y.shape[1] :] for part in self.projections)
        return ReadClicks(functional.linear(y, to_both, of_both), functional.linear(backward, to_both), bias)

    @property
    def projections(self) -> tuple[Tensor, Tensor]:
        return self.queries_keys_values.weight, self.queries_keys_values.bias

    def forward(  # type: ignore[override]
        self, x: Tensor, same: Tensor, read: ReadClicks, clicks: SeenClicks, packing: Packing
    ) -> Tensor:
        """x [Q, A, d] of what asks; same [Q, A, W]: 1 where a seen click has its item, else 0 -> x1 [Q, A, d]."""
        queries, near = self.asked(x, same, read)
        _, near_values = keys_and_values(read.of_distances, self.heads)
        if clicks.is_every and has_kernel(x[:, 0], packing, None, self.heads):
            share = self.dropout.p if self.training else 0.0
            seed = torch.randint(1 << 31, (1,), device=x.device) if share else packing.begins[:1]
            attended, weights = kernels.attention(
                queries.flatten(1), read.of_clicks, near, packing.begins, seed, self.heads, packing.longest, True, share
            )
            attended = attended.view_as(x) + by_head(weights, near_values.transpose(0, 1)).flatten(2)
        else:
            keys, values = in_slots(read.of_clicks, self.heads, packing)
            weights = self.dropout(attention_weights(queries, keys, near, clicks, packing))
            sums = batched_product(weights.flatten(2, 3), values).view(*weights.shape[:4], -1)
            sums = sums + torch.einsum("bhiaw,whe->bhiae", by_distance(weights, clicks, packing), near_values)
            attended = from_slots(sums, clicks, packing)
        return self.with_attended(x.flatten(0, 1), attended.flatten(0, 1)).view_as(x)

    def attention(  # type: ignore[override]
        self, x: Tensor, same: Tensor, read: ReadClicks, clicks: SeenClicks, packing: Packing
    ) -> Tensor:
        """The attention weights, for explanations: [Q, A, heads, L], by the place of the click that is read."""
        queries, near = self.asked(x, same, read)
        keys, _ = in_slots(read.of_clicks, self.heads, packing)
        weights = attention_weights(queries, keys, near, clicks, packing)
        return torch.unflatten(from_slots(weights, clicks, packing), 2, (self.heads, -1))

    def asked(self, x: Tensor, same: Tensor, read: ReadClicks) -> tuple[Tensor, Tensor]:
        """Queries [Q, A, heads, d_head], and what the distance adds to the logits, [Q, A, heads, W]."""
        d = x.shape[2]
        to_query, of_query = (part[:d] for part in self.projections)
        queries = torch.unflatten(functional.linear(x, to_query, of_query), 2, (self.heads, -1))
        near_keys, _ = keys_and_values(read.of_distances, self.heads)
        near = by_head(queries, near_keys.permute(1, 2, 0) / math.sqrt(d // self.heads))
        near = near + same[:, :, None] * self.same_item[:, None]
        return queries, near if read.bias is None else near + read.bias


def by_head(x: Tensor, factors: Tensor) -> Tensor:
    """x [Q, A, heads, m], factors [heads, m, n] -> [Q, A, heads, n].

    The gradient of `factors` is a sum over all rows of x, which few units of a GPU would compute one after the other.
    So the rows are cut into parts, and the sums of the parts are computed side by side.
    """
    parts = PARTS if x.is_cuda and len(x) % PARTS == 0 else 1
    rows = x.reshape(parts, -1, *x.shape[2:]).transpose(1, 2)  # [parts, heads, rows, m]
    found = torch.matmul(rows, factors.expand(parts, -1, -1, -1))
    return found.transpose(1, 2).reshape(*x.shape[:3], -1)


def keys_and_values(keys_values: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """[..., 2d] -> two of [..., heads, d_head]."""
    keys, values = torch.unflatten(keys_values, -1, (2, heads, -1)).unbind(-3)
    return keys, values


# Without the kernel, attention is computed in slots: B sessions of L places, in each of which I clicks are asked for:
# all L, or the last.


def in_slots(keys_values: Tensor, heads: int, packing: Packing) -> tuple[Tensor, Tensor]:
    """[T, 2d] -> two of [B, heads, L, d_head]."""
    keys, values = keys_and_values(packing.to_slots(keys_values), heads)
    return keys.transpose(1, 2), values.transpose(1, 2)


def attention_weights(queries: Tensor, keys: Tensor, near: Tensor, clicks: SeenClicks, packing: Packing) -> Tensor:
    """[B, heads, I, A, L]."""
    distance = distances(clicks, packing)[:, None, :, None]
    asking, near = (packing.to_slots(part) if clicks.is_every else part[:, None] for part in (queries, near))
    asking, near = (part.permute(0, 3, 1, 2, 4) for part in (asking, near))  # [B, heads, I, A, ...]
    logits = batched_product(asking.flatten(2, 3), keys.mT).view(near.shape) / math.sqrt(keys.shape[3])
    logits = logits + near.gather(4, distance.clamp(min=0).expand_as(near))
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1)


def by_distance(weights: Tensor, clicks: SeenClicks, packing: Packing) -> Tensor:
    """[B, heads, I, A, L] -> [B, heads, I, A, W], with 0 at distances where there is no click."""
    distance = torch.arange(packing.longest, device=weights.device)
    place = distances(clicks, packing)[:, :, :1] - distance  # [B or 1, I, W] of the click at each distance
    place = place[:, None, :, None]
    return weights.gather(4, place.clamp(min=0).expand_as(weights)).masked_fill(place < 0, 0)


def distances(clicks: SeenClicks, packing: Packing) -> Tensor:
    """[B or 1, I, L] how far before an asking click each place is; below 0 for places after it."""
    place = torch.arange(packing.longest, device=clicks.place.device)
    asking = place[None] if clicks.is_every else clicks.place[:, None]
    return asking[:, :, None] - place


def from_slots(slots: Tensor, clicks: SeenClicks, packing: Packing) -> Tensor:
    """[B, heads, I, A, c] -> [Q, A, heads c]."""
    sessions, _, asking, askers, _ = slots.shape
    slots = slots.flatten(2, 3).transpose(1, 2).flatten(2)  # [B, I A, heads c]
    if askers > 1:
        slots = slots.reshape(sessions, asking, -1)
    rows = packing.to_rows(slots) if clicks.is_every else slots[:, 0]
    return torch.unflatten(rows, 1, (askers, -1))
