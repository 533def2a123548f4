"""GRU4Rec (Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", ICLR
2016; Hidasi and Karatzoglou, "Recurrent Neural Networks with Top-k Gains for Session-based
Recommendations", CIKM 2018), with the losses of both papers (`training/ranking_losses.py`).

The input and output vectors of the items are one table (`tied`, the constrained embedding of 2018)
or two (2016). With one table, a state of another width is mapped to that of the items, as in
RecBole."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from posrec.config import setting
from posrec.models.base import CLICK_DROPOUT, CLICKS_READ, DROPOUT, SPREAD, SessionModel
from posrec.nn.batch import SessionBatch, at_last_click
from posrec.nn.items.item_table import ItemTable
from posrec.nn.layers.recurrent import Recurrent


@dataclass(frozen=True)
class GRU4RecConfig:
    """Sizes of both papers; dropouts as in the 2018 code's settings for these datasets
    (docs/models_baselines.md)."""

    d: int = setting(100, "width of item vectors", at_least=1)
    hidden: int = setting(100, "width of the recurrent layers", at_least=1)
    layers: int = setting(1, "recurrent layers", at_least=1)
    tied: bool = setting(
        True, "one table of item vectors; where hidden is not d, a linear map follows"
    )
    truncated: bool = setting(
        True,
        "backpropagate through the last step alone, as in both papers",
        tune=(True, False),
    )
    embedding_dropout: float = setting(0.0, **CLICK_DROPOUT)
    dropout: float = setting(0.2, "dropout of the states", **DROPOUT)
    spread: float = setting(0.0, **SPREAD)
    max_length: int = setting(20, **CLICKS_READ)


class GRU4Rec(SessionModel):
    """Gated recurrent layers over the clicks, 2016 Eq. (2)-(5); the last state is the session's
    vector, and items are scored by their product with it."""

    def __init__(self, items: int, config: GRU4RecConfig) -> None:
        super().__init__(items, config)
        self.embedding = ItemTable(items, config.d)
        self.recurrent = Recurrent(
            config.d, config.hidden, config.layers, config.dropout
        )
        self.out = None if config.tied else ItemTable(items, config.hidden)
        self.map = None
        if config.tied and config.hidden != config.d:
            self.map = nn.Linear(config.hidden, config.d)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.dropout = nn.Dropout(config.dropout)
        # PyTorch's default for recurrent layers
        self.draw_weights(1 / math.sqrt(config.hidden), config.spread)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """h_t, [B, hidden] or mapped to [B, d], and the table of the output vectors."""
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d]
        x = self.embedding_dropout(x)
        if self.config.truncated:
            last = self.recurrent.last_step(x, batch.lengths)
        else:
            last = at_last_click(self.recurrent(x), batch.lengths)
        state = self.dropout(last)
        if self.map is not None:
            state = self.map(state)
        return state, table if self.out is None else self.out.weight

    def item_vectors(self) -> Tensor:
        table = self.embedding if self.out is None else self.out
        return table.vectors()
