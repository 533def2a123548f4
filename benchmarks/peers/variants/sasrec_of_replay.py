"""SASRec with what RePlay's has, to find why the figures of the two differ.

RePlay follows the code of SASRec's authors, where only the queries are normalised, and are what the
attention's result is added to. posrec follows Eq. (5) of the paper, x + sublayer(LayerNorm(x)).
RePlay draws all matrices, the item vectors among them, by Glorot and Bengio's normal rule.

RePlay trains on whole sessions, with a loss at every click. It counts positions from the last click
that it reads: in training the one before the session's last, afterwards the latest click.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.models.baselines.sasrec import (
    SASRec,
    SASRecConfig,
    SelfAttentionBlock,
)
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch
from posrec.nn.layers.transformer import self_attention
from posrec.nn.packing import Packing, pack


class RePlayLayer(SelfAttentionBlock):
    """x [T, d] -> [T, d]; with `rows [R]`, these rows of it.

    q = LayerNorm(x),  y = LayerNorm(q + W softmax(q K^T / sqrt(d_head)) V),  K, V of x
    result = y + dropout(W_2 dropout(relu(W_1 y)))
    """

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__(d, heads, dropout)
        self.queries_keys_values = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        bias: Tensor | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        queries = self.attention_norm(x)
        d = x.shape[1]
        weight = self.queries_keys_values.weight
        bias_of_rows = self.queries_keys_values.bias
        projected = torch.cat(
            [
                functional.linear(queries, weight[:d], bias_of_rows[:d]),
                functional.linear(x, weight[d:], bias_of_rows[d:]),
            ],
            dim=1,
        )
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


class SASRecOnWholeSessions(SASRecOfRePlay):
    """The same, trained as RePlay's is."""

    @property
    def is_causal(self) -> bool:  # type: ignore[override]
        return self.training  # when it recommends, positions depend on the last click

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """[T, d], one for each click, if these are asked for."""
        if not batch.every_click:
            return super().vectors(batch)
        packing = batch.packing or pack(batch.mask, batch.capacity)
        clicked, table = self.embedding.look_up_and_table(packing.to_rows(batch.items))
        position = torch.arange(batch.items.shape[1], device=batch.items.device)
        forward = position.expand_as(batch.items)
        backward = batch.lengths[:, None] - 1 - forward
        encoded = packing.to_rows(self.encoding(forward, backward, batch.lengths))
        hidden = self.dropout(math.sqrt(self.config.d) * clicked + encoded)
        for layer in self.layers:
            hidden = layer(hidden, packing, None)
        return self.norm(hidden), table


SPEC = ModelSpec(
    SASRecOfRePlay,
    SASRecConfig,
    about="SASRec with RePlay's layer and initial weights",
)
WHOLE_SESSIONS_SPEC = ModelSpec(
    SASRecOnWholeSessions,
    SASRecConfig,
    about="the same, trained on whole sessions with a loss at every click",
)
