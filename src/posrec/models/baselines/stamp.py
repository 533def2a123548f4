"""STAMP (Liu et al., "STAMP: Short-Term Attention/Memory Priority Model for Session-based
Recommendation", KDD 2018).

The attention weight of a click depends on its vector x_i, the last click's x_t, and the mean m_s of
all, Eq. (2), (7). The weighted sum m_a, Eq. (8), and x_t each go through a small network, Eq. (3);
an item is scored by the trilinear product of both with it, Eq. (1) and (4): <h_s, h_t, x_i> = (h_s
* h_t) x_i, so the session's vector is h_s * h_t. The sigmoid of Eq. (4) changes no rank, and the
authors' code trains without it.

With an `encoding` the positional encoding of every click is added to its vector, PosRec's section
5.3; the relative encoding is added to the weights of Eq. (7) instead."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.config import ENCODING, setting
from posrec.encodings.schemes import attention_bias, make_encoding
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch, at_last_click
from posrec.nn.items.item_table import ItemTable


@dataclass(frozen=True)
class STAMPConfig:
    """The paper's settings; docs/models_baselines.md has the reasons for those that differ."""

    d: int = setting(
        100, "width of item vectors", at_least=1, tune=(50, 64, 100, 128, 200)
    )
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
    dropout: float = setting(
        0.0,
        "dropout of the clicks' vectors",
        between=(0, 1),
        tune=(0.0, 0.1, 0.2, 0.3, 0.5),
    )
    max_length: int = setting(
        20, "how many of a session's latest clicks are read", at_least=1
    )


class STAMP(SessionModel):
    """Attention from the last click and the mean of all; the session's vector is h_s * h_t."""

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
        """Normal; a learned encoding has the same standard deviation as the item vectors. Biases
        are zero."""
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
        """h_s * h_t [B, d] and the item table, whose first n rows are X."""
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d]
        forward = torch.arange(
            batch.items.shape[1], device=batch.items.device
        ).expand_as(batch.items)
        backward = batch.lengths[:, None] - 1 - forward
        positions = (forward, backward, batch.lengths)
        if self.config.encoding != "none":
            x = (x + self.encoding(*positions)) * batch.mask[:, :, None]
        bias = attention_bias(self.encoding, *positions)  # [B, 1, L, L]
        of_last = (
            None if bias is None else at_last_click(bias[:, 0], batch.lengths)
        )  # [B, L], the last click's row
        return self.compose(self.dropout(x), batch, of_last), table

    def compose(self, x: Tensor, batch: SessionBatch, bias: Tensor | None) -> Tensor:
        """The clicks' vectors x [B, L, d], zeros for padding -> h_s * h_t [B, d]."""
        last = at_last_click(x, batch.lengths)
        mean = x.sum(1) / batch.lengths[:, None]  # Eq. (2)
        match = self.of_each(x) + (self.of_last(last) + self.of_mean(mean))[:, None]
        weights = self.weight(torch.sigmoid(match))[
            :, :, 0
        ]  # Eq. (7), [B, L]; not normalised
        if bias is not None:
            weights = weights + bias
        attended = (weights[:, :, None] * x).sum(1)  # Eq. (8); padding is zeros in x
        if self.config.add_mean:
            attended = attended + mean
        return torch.tanh(self.session_network(attended)) * torch.tanh(
            self.last_network(last)
        )  # Eq. (3)
