"""STAMP (Liu et al., "STAMP: Short-Term Attention/Memory Priority Model for Session-based
Recommendation", KDD 2018).

Attention from the last click and the mean of all. With an `encoding` the positional encoding of
every click is added to its vector, PosRec's section 5.3; the relative encoding is added to the
weights of Eq. (7) instead."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.config import ENCODING, setting
from posrec.encodings.schemes import attention_bias, make_encoding
from posrec.models.base import CLICKS_READ, DROPOUT, ITEM_WIDTH, SessionModel
from posrec.nn.batch import SessionBatch, at_last_click
from posrec.nn.items.item_table import ItemTable


@dataclass(frozen=True)
class STAMPConfig:
    """The paper's settings; docs/models_baselines.md has the reasons for those that differ."""

    d: int = setting(100, **ITEM_WIDTH)
    encoding: str = setting("none", ENCODING, tune=("none", "ldpe"))
    add_mean: bool = setting(
        False,
        "use m_a + m_s in place of m_a, as in the authors' code",
        tune=(False, True),
    )
    item_spread: float = setting(
        0.05,
        "initial standard deviation of item vectors; the paper has 0.002",
        at_least=0,
    )
    weight_spread: float = setting(
        0.05, "initial standard deviation of the weights", at_least=0
    )
    dropout: float = setting(0.2, "dropout of the clicks' vectors", **DROPOUT)
    max_length: int = setting(20, **CLICKS_READ)


class STAMP(SessionModel):
    """An item is scored by a trilinear product, Eq. (1) and (4): <h_s, h_t, x_i> = (h_s * h_t) x_i,
    so the session's vector is h_s * h_t. The sigmoid of Eq. (4) changes no rank, and the authors'
    code trains without it."""

    def __init__(self, items: int, config: STAMPConfig) -> None:
        super().__init__(items, config)
        d = config.d
        self.embedding = ItemTable(items, d)
        self.encoding = make_encoding(config.encoding, d, config.max_length)
        self.of_each = nn.Linear(d, d)  # W_1, b_a
        self.of_last = nn.Linear(d, d, bias=False)  # W_2
        self.of_mean = nn.Linear(d, d, bias=False)  # W_3
        self.weight = nn.Linear(d, 1, bias=False)  # W_0
        self.session_network = nn.Linear(d, d)  # W_s, b_s
        self.last_network = nn.Linear(d, d)  # W_t, b_t
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal, with biases of 0; a learned encoding is drawn like the item vectors."""
        nn.init.normal_(self.embedding.weight, std=self.config.item_spread)
        for module in self.modules_to_initialize():
            if module is self.encoding:
                for parameter in module.parameters():
                    nn.init.normal_(parameter, std=self.config.item_spread)
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config.weight_spread)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """h_s * h_t [B, d] and the item table."""
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d]
        position = torch.arange(batch.items.shape[1], device=batch.items.device)
        forward = position.expand_as(batch.items)
        positions = (forward, batch.lengths[:, None] - 1 - forward, batch.lengths)
        if self.config.encoding != "none":
            x = (x + self.encoding(*positions)) * batch.mask[:, :, None]
        bias = attention_bias(self.encoding, *positions)  # [B, 1, L, L]
        if bias is not None:
            bias = at_last_click(bias[:, 0], batch.lengths)  # [B, L]
        return self.compose(self.dropout(x), batch, bias), table

    def compose(self, x: Tensor, batch: SessionBatch, bias: Tensor | None) -> Tensor:
        """x [B, L, d] of the clicks, 0 in padding, and a bias [B, L] -> h_s * h_t [B, d]."""
        last = at_last_click(x, batch.lengths)
        mean = x.sum(1) / batch.lengths[:, None]  # Eq. (2)
        match = self.of_each(x) + (self.of_last(last) + self.of_mean(mean))[:, None]
        # Eq. (7), [B, L]; not normalised
        weights = self.weight(torch.sigmoid(match))[:, :, 0]
        if bias is not None:
            weights = weights + bias
        attended = (weights[:, :, None] * x).sum(1)  # Eq. (8); padding is zeros in x
        if self.config.add_mean:
            attended = attended + mean
        # Eq. (3)
        h_s = torch.tanh(self.session_network(attended))
        h_t = torch.tanh(self.last_network(last))
        return h_s * h_t
