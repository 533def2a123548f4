"""NARM (Li et al., "Neural Attentive Session-based Recommendation", CIKM 2017).

A recurrent layer reads the clicks. Its last state is the global encoding of the session; the local
encoding is an attention-weighted sum of all states, with the last state as the query."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.config import setting
from posrec.models.base import (
    CLICK_DROPOUT,
    CLICKS_READ,
    DROPOUT,
    ITEM_WIDTH,
    SPREAD,
    SessionModel,
)
from posrec.nn.batch import SessionBatch, at_last_click
from posrec.nn.items.item_table import ItemTable
from posrec.nn.layers.recurrent import Recurrent


@dataclass(frozen=True)
class NARMConfig:
    """The paper's sizes and dropouts."""

    d: int = setting(50, **ITEM_WIDTH)
    hidden: int = setting(100, "width of the recurrent layer", at_least=1)
    softmax: bool = setting(
        True,
        "normalise the attention weights, as in the authors' code; the paper has no softmax",
    )
    embedding_dropout: float = setting(0.25, **CLICK_DROPOUT)
    dropout: float = setting(0.5, "dropout before the bilinear map", **DROPOUT)
    spread: float = setting(0.0, **SPREAD)
    # The authors read 19.
    max_length: int = setting(20, **CLICKS_READ)


class NARM(SessionModel):
    def __init__(self, items: int, config: NARMConfig) -> None:
        super().__init__(items, config)
        hidden = config.hidden
        self.embedding = ItemTable(items, config.d)
        self.recurrent = Recurrent(config.d, hidden)
        self.of_last = nn.Linear(hidden, hidden, bias=False)  # A_1
        self.of_each = nn.Linear(hidden, hidden, bias=False)  # A_2
        self.match = nn.Linear(hidden, 1, bias=False)  # v
        self.bilinear = nn.Linear(2 * hidden, config.d, bias=False)  # B
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.dropout = nn.Dropout(config.dropout)
        if config.spread:  # otherwise as PyTorch draws each layer, also uniformly
            self.draw_weights(0.0, config.spread)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """B c [B, d] and the item table emb: a bilinear map scores the items, Eq. (10): S_i =
        emb_i B c."""
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d]
        # Eq. (1)-(4), [B, L, hidden]
        states = self.recurrent(self.embedding_dropout(x))
        last = at_last_click(states, batch.lengths)  # Eq. (5)
        weights = self.weights(states, last, batch.mask)
        local = (weights[:, :, None] * states).sum(1)  # Eq. (6)
        both = torch.cat([last, local], 1)  # c, Eq. (9)
        return self.bilinear(self.dropout(both)), table

    def weights(self, states: Tensor, last: Tensor, mask: Tensor) -> Tensor:
        """The attention weights alpha [B, L], Eq. (7) and (8)."""
        both = self.of_last(last)[:, None] + self.of_each(states)
        matching: Tensor = self.match(torch.sigmoid(both))[:, :, 0]
        if self.config.softmax:
            return matching.masked_fill(~mask, -math.inf).softmax(1)
        return matching.masked_fill(~mask, 0)
