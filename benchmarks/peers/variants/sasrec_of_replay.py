"""SASRec with what RePlay's has, to find why the figures of the two differ.

RePlay follows the code of SASRec's authors, where only the queries are normalised, and are what the
attention's result is added to. posrec follows Eq. (5) of the paper, x + sublayer(LayerNorm(x)).
RePlay draws all matrices, the item vectors among them, by Glorot and Bengio's normal rule.
"""

import torch
from torch import Tensor, nn

from posrec.models.baselines.sasrec import (
    SASRec,
    SASRecConfig,
    SelfAttentionBlock,
)
from posrec.models.registry import ModelSpec
from posrec.nn.layers.transformer import self_attention
from posrec.nn.packing import Packing


class RePlayLayer(SelfAttentionBlock):
    """x [T, d] -> [T, d]; with `rows [R]`, these rows of it.

    q = LayerNorm(x),  y = LayerNorm(q + W softmax(q K^T / sqrt(d_head)) V),  K, V of x
    result = y + dropout(W_2 dropout(relu(W_1 y)))
    """

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__(d, heads, dropout)
        del self.queries_keys_values  # of the normalised x all three
        self.queries = nn.Linear(d, d)
        self.keys_values = nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, d)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        bias: Tensor | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        queries = self.attention_norm(x)
        projected = torch.cat([self.queries(queries), self.keys_values(x)], dim=1)
        attended = self_attention(
            projected, self.heads, packing, bias, self.dropout, causal=True
        )
        if rows is not None:
            queries = queries[rows]
            attended = attended[rows]
        y = self.feed_forward_norm(queries + self.out(attended))
        inner = self.dropout(torch.relu(self.first(y)))
        result: Tensor = y + self.dropout(self.second(inner))
        return result


class SASRecOfRePlay(SASRec):
    def __init__(self, items: int, config: SASRecConfig) -> None:
        super().__init__(items, config)
        self.layers = nn.ModuleList(
            RePlayLayer(config.d, config.heads, config.dropout)
            for _ in range(config.layers)
        )
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_normal_(parameter)


SPEC = ModelSpec(
    SASRecOfRePlay,
    SASRecConfig,
    about="SASRec with RePlay's layer and initial weights",
)
