"""SASRec (Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018).

Clicks with their positions go through Transformer layers in which every click attends to itself and
to those before it; the last click's vector is the session's. Like every model here it is trained
with the cross entropy over all items; its authors use one sampled negative."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.config import ENCODING, setting
from posrec.encodings.schemes import attention_bias, make_encoding
from posrec.models.base import CLICKS_READ, DROPOUT, ITEM_WIDTH, SPREAD, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.item_table import ItemTable
from posrec.nn.layers.transformer import apply_layers, self_attention
from posrec.nn.packing import Packing, pack


@dataclass(frozen=True)
class SASRecConfig:
    d: int = setting(100, **ITEM_WIDTH)
    encoding: str = setting("lpe", ENCODING, tune=("lpe", "ldpe"))
    layers: int = setting(2, "layers of the Transformer", at_least=0, tune=(1, 2, 3))
    heads: int = setting(1, "heads of attention", at_least=1)
    dropout: float = setting(0.2, "dropout in the Transformer", **DROPOUT)
    scaled: bool = setting(
        True,
        "multiply the clicks' vectors by sqrt(d), as the authors' code does",
        tune=(False, True),
    )
    spread: float = setting(0.02, **SPREAD)
    max_length: int = setting(20, **CLICKS_READ)


class SelfAttentionBlock(nn.Module):
    """x [T, d] -> [T, d]; with `rows [R]` only these rows are computed after the attention, [R, d].

    Sublayers of the form x + dropout(sublayer(LayerNorm(x))), Eq. (5):
    S = x + dropout(softmax(Q K^T / sqrt(d_head) + bias) V),  Q, K, V of LayerNorm(x), Eq. (2), (3)
    F = S + dropout(W_2 relu(W_1 LayerNorm(S))), Eq. (4)

    where `bias` is [1 or B, 1 or heads, L, L].
    """

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__()
        if d % heads:
            raise ValueError(f"heads={heads} must divide d={d}")
        self.heads = heads
        self.attention_norm = nn.LayerNorm(d)
        self.queries_keys_values = nn.Linear(d, 3 * d, bias=False)
        self.feed_forward_norm = nn.LayerNorm(d)
        self.first = nn.Linear(d, d)
        self.second = nn.Linear(d, d)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        bias: Tensor | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        projected = self.queries_keys_values(self.attention_norm(x))
        attended = self_attention(
            projected, self.heads, packing, bias, self.dropout, causal=True
        )
        if rows is not None:
            x = x[rows]
            attended = attended[rows]
        x = x + self.dropout(attended)
        inner = self.dropout(functional.relu(self.first(self.feed_forward_norm(x))))
        result: Tensor = x + self.dropout(self.second(inner))
        return result


class SASRec(SessionModel):
    def __init__(self, items: int, config: SASRecConfig) -> None:
        super().__init__(items, config)
        d = config.d
        self.embedding = ItemTable(items, d)
        self.encoding = make_encoding(
            config.encoding, d, config.max_length, config.heads
        )
        self.layers = nn.ModuleList(
            SelfAttentionBlock(d, config.heads, config.dropout)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(d)
        self.dropout = nn.Dropout(config.dropout)
        self.draw_weights(1 / math.sqrt(config.d), config.spread)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """F of the last click [B, d], whose products with the items are the scores, Eq. (6); the
        item table, which is that of the clicks."""
        packing = batch.packing or pack(batch.mask, batch.capacity)
        numbers = packing.to_rows(batch.items)
        clicked, table = self.embedding.look_up_and_table(numbers)  # [T, d]
        position = torch.arange(batch.items.shape[1], device=batch.items.device)
        forward = position.expand_as(batch.items)
        positions = (forward, batch.lengths[:, None] - 1 - forward, batch.lengths)
        scale = math.sqrt(self.config.d) if self.config.scaled else 1.0
        placed = scale * clicked + packing.to_rows(self.encoding(*positions))  # Eq. (1)
        hidden = self.dropout(placed)
        bias = attention_bias(self.encoding, *positions)
        last_row = packing.row_at(batch.lengths - 1)
        last_click = apply_layers(self.layers, hidden, last_row, packing, bias)
        return self.norm(last_click), table
