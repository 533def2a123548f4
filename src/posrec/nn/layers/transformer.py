"""One Transformer layer (Vaswani et al., 2017): every filled slot attends to every filled slot.

A  = softmax(Q K^T / sqrt(d_head) + bias) V,  over the filled slots of the session
x1 = LayerNorm(x + A W_o)
x2 = LayerNorm(x1 + W_2 relu(W_1 x1))
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import posrec.kernels as kernels
from posrec.nn.packing import Packing, is_eager_on_cpu


class Dropout(nn.Dropout):
    """nn.Dropout, whose draws take longer on a CPU than a layer's product. Here one draw of 64
    random bits decides for four numbers, by 16 bits each, so that `p` is rounded to 1/65536."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_eager_on_cpu(x) or not self.training or self.p in (0, 1):
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
        bits = draws.random_(-(1 << 63), None).view(torch.int16)
        stays = bits[: x.numel()].view(x.shape) >= round(self.p * 65536) - 32768
        return x * stays.to(x.dtype).mul_(1 / (1 - self.p))


class TransformerLayer(nn.Module):
    """x [T, d] -> [T, d]; `bias` [1 or B, 1 or heads, L, L] is added to the attention's logits.
    With `rows [R]` only these rows are computed after the attention, [R, d]."""

    def __init__(self, d: int, heads: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d % heads:
            raise ValueError(f"heads={heads} must divide d={d}")
        self.d = d
        self.heads = heads
        self.d_head = d // heads
        self.queries_keys_values = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.widen = nn.Linear(d, width)
        self.narrow = nn.Linear(width, d)
        self.after_attention = nn.LayerNorm(d)
        self.after_feed_forward = nn.LayerNorm(d)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        projected = self.queries_keys_values(x)
        attended = self_attention(projected, self.heads, packing, bias, self.dropout)
        if rows is not None:
            x = x[rows]
            attended = attended[rows]
        return self.fed_forward(self.with_attended(x, attended))

    def with_attended(self, x: Tensor, attended: Tensor) -> Tensor:
        """x and A [R, d] -> x1 [R, d]."""
        x1: Tensor = self.after_attention(x + self.dropout(self.out(attended)))
        return x1

    def fed_forward(self, x1: Tensor) -> Tensor:
        """x1 -> x2, [R, d]."""
        inner = functional.relu(self.widen(x1))
        x2: Tensor = self.after_feed_forward(x1 + self.dropout(self.narrow(inner)))
        return x2

    def attention(
        self, x: Tensor, packing: Packing, bias: Tensor | None = None
    ) -> Tensor:
        """The attention weights, for explanations; [B, heads, L, L], row: the query's slot."""
        queries, keys, _ = split_heads(self.queries_keys_values(x), self.heads, packing)
        return attention_weights(queries, keys, packing, bias)


def apply_layers(
    layers: nn.ModuleList, x: Tensor, rows: Tensor, *mixing: Any
) -> Tensor:
    """Apply the layers to x [T, d] and return its `rows` [R, d]; the last layer computes only
    these, since a readout reads one or two clicks of a session."""
    if not layers:
        return x[rows]
    for layer in layers[:-1]:
        x = layer(x, *mixing)
    read: Tensor = layers[-1](x, *mixing, rows=rows)
    return read


def self_attention(
    rows: Tensor,
    heads: int,
    packing: Packing,
    bias: Tensor | None = None,
    dropout: nn.Dropout | None = None,
    causal: bool = False,
) -> Tensor:
    """Q || K || V [T, 3d] -> A [T, d]; `dropout` is applied to the weights; `causal`: no attention
    to later rows."""
    d = rows.shape[1] // 3
    queries = rows[:, :d]
    if has_kernel(queries, packing, bias, heads):
        keys_values = rows[:, d:]
        return kernel_attention(
            queries, keys_values, None, heads, packing, dropout, causal
        )[0]
    queries, keys, values = split_heads(rows, heads, packing)
    weights = attention_weights(queries, keys, packing, bias, causal)
    if dropout is not None:
        weights = dropout(weights)
    return packing.to_rows((weights @ values).transpose(1, 2).flatten(2))


def has_kernel(x: Tensor, packing: Packing, bias: Tensor | None, heads: int) -> bool:
    """Whether a kernel computes the attention."""
    return (
        bias is None
        and kernels.supports(x)
        and kernels.attention_fits(packing.longest, x.shape[1] // heads)
    )


def kernel_attention(
    queries: Tensor,
    keys_values: Tensor,
    near: Tensor | None,
    heads: int,
    packing: Packing,
    dropout: nn.Dropout | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """The kernel's attention and its weights (`kernels/attention.py`), if `has_kernel`."""
    share = dropout.p if dropout is not None and dropout.training else 0.0
    seed = packing.begins[:1]  # any number, if nothing is dropped
    if share:
        seed = torch.randint(1 << 31, (1,), device=queries.device)
    options = (heads, packing.longest, causal, share)
    attended, weights = kernels.attention(
        queries, keys_values, near, packing.begins, seed, *options
    )
    return attended, weights


def split_heads(
    rows: Tensor, heads: int, packing: Packing
) -> tuple[Tensor, Tensor, Tensor]:
    """Q || K || V [T, 3d] -> three of [B, heads, L, d_head]."""
    slots = packing.to_slots(rows)  # [B, L, 3d]
    split = slots.view(*slots.shape[:2], 3, heads, -1)
    queries, keys, values = split.transpose(1, 3).unbind(2)
    return queries, keys, values


def attention_weights(
    queries: Tensor,
    keys: Tensor,
    packing: Packing,
    bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_head) + bias) over the filled slots, [B, heads, L, L]."""
    logits = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1])
    if bias is not None:
        logits = logits + bias
    unseen = ~packing.filled[:, None, None, :]
    if causal:
        slot = torch.arange(packing.longest, device=queries.device)
        unseen = unseen | (slot > slot[:, None])
    return logits.masked_fill(unseen, -math.inf).softmax(-1)
