"""One Transformer layer (Vaswani et al., 2017): every filled slot attends to every filled slot.

A  = softmax(Q K^T / sqrt(d_head) + bias) V,  over the filled slots of the session
x1 = LayerNorm(x + A W_o)
x2 = LayerNorm(x1 + W_2 relu(W_1 x1))
"""

import math

from torch import Tensor, nn
from torch.nn import functional

from posrec.layers.packing import Packing
from posrec.layers.product import batched_product


class TransformerLayer(nn.Module):
    """x [T, d] -> [T, d]; `bias` [1 or B, 1 or heads, L, L] is added to the attention's logits."""

    def __init__(self, d: int, heads: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d % heads:
            raise ValueError(f"heads={heads} does not divide d={d}")
        self.heads = heads
        self.queries_keys_values = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.widen = nn.Linear(d, width)
        self.narrow = nn.Linear(width, d)
        self.after_attention = nn.LayerNorm(d)
        self.after_feed_forward = nn.LayerNorm(d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, packing: Packing, bias: Tensor | None = None) -> Tensor:
        x = self.after_attention(x + self.dropout(self.attend(x, packing, bias)))
        x = self.after_feed_forward(x + self.dropout(self.narrow(functional.relu(self.widen(x)))))
        return x

    def attend(self, x: Tensor, packing: Packing, bias: Tensor | None = None) -> Tensor:
        attended = self_attention(self.queries_keys_values(x), self.heads, packing, bias, self.dropout)
        gathered: Tensor = self.out(attended)
        return gathered

    def attention(self, x: Tensor, packing: Packing, bias: Tensor | None = None) -> Tensor:
        """The weights with which slots read one another, for who wants to look; [B, heads, L, L], row: who reads."""
        queries, keys, _ = split_heads(self.queries_keys_values(x), self.heads, packing)
        return attention_weights(queries, keys, packing, bias)


def self_attention(
    queries_keys_values: Tensor,
    heads: int,
    packing: Packing,
    bias: Tensor | None = None,
    dropout: nn.Module | None = None,
) -> Tensor:
    """Q || K || V [T, 3d] -> A [T, d]; `dropout` is applied to the attention's weights."""
    queries, keys, values = split_heads(queries_keys_values, heads, packing)
    weights = attention_weights(queries, keys, packing, bias)
    if dropout is not None:
        weights = dropout(weights)
    return packing.to_rows(batched_product(weights, values).transpose(1, 2).flatten(2))


def split_heads(queries_keys_values: Tensor, heads: int, packing: Packing) -> tuple[Tensor, Tensor, Tensor]:
    """Q || K || V [T, 3d] -> three of [B, heads, L, d_head]."""
    slots = packing.to_slots(queries_keys_values)  # [B, L, 3d]
    split = slots.view(*slots.shape[:2], 3, heads, -1)
    queries, keys, values = split.transpose(1, 3).unbind(2)
    return queries, keys, values


def attention_weights(queries: Tensor, keys: Tensor, packing: Packing, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_head) + bias) over the filled slots, [B, heads, L, L]."""
    logits = batched_product(queries, keys.mT) / math.sqrt(queries.shape[-1])
    if bias is not None:
        logits = logits + bias
    return logits.masked_fill(~packing.filled[:, None, None, :], -math.inf).softmax(-1)
