"""GRU4Rec with the dropout of its authors' code, to find why the figures of the two differ.

In their training, dropout changes every state, so that the next click reads what is left of it.
posrec drops units of the last state alone.
"""

import torch
from torch import Tensor

from posrec.models.baselines.gru4rec import GRU4Rec, GRU4RecConfig
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch, at_last_click


class GRU4RecOfAuthors(GRU4Rec):
    """For one layer with the width of the item vectors, and one table of them."""

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d]
        x = self.embedding_dropout(x)
        with torch.no_grad():
            before = self.state_before_last(x, batch.lengths)
        step = at_last_click(x, batch.lengths)[:, None]
        (layer,) = self.recurrent.layers
        state, _ = layer(step, before[None])
        return self.dropout(state[:, 0]), table

    def state_before_last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """[B, hidden]: the state after the last click but one, 0 in a session of one click."""
        (layer,) = self.recurrent.layers
        state = x.new_zeros(len(x), self.config.hidden)
        for position in range(x.shape[1] - 1):
            new, _ = layer(x[:, position : position + 1], state[None])
            is_read = position < lengths - 1
            state = torch.where(is_read[:, None], self.dropout(new[:, 0]), state)
        return state


SPEC = ModelSpec(
    GRU4RecOfAuthors, GRU4RecConfig, about="GRU4Rec with dropout of every state"
)
