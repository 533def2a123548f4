"""GRU4Rec with the dropout of its authors' code, to find why the figures of the two differ.

In their training, dropout changes every state, so that the next click reads what is left of it.
posrec drops units of the last state alone.
"""

import torch
from torch import Tensor

from posrec.models.baselines.gru4rec import GRU4Rec, GRU4RecConfig
from posrec.models.registry import ModelSpec
from posrec.nn.layers.recurrent import Recurrent


class DroppedStates(Recurrent):
    """One layer whose states are changed by dropout before the next click reads them."""

    def every_layer(self, x: Tensor) -> list[Tensor]:
        (layer,) = self.layers
        states: list[Tensor] = []
        for click in torch.split(x, 1, dim=1):  # [B, 1, d]
            before = states[-1].transpose(0, 1).contiguous() if states else None
            states.append(self.dropout(layer(click, before)[0]))
        return [torch.cat(states, dim=1)]


class GRU4RecOfAuthors(GRU4Rec):
    def __init__(self, items: int, config: GRU4RecConfig) -> None:
        super().__init__(items, config)
        drawn = self.recurrent.state_dict()
        self.recurrent = DroppedStates(
            config.d, config.hidden, config.layers, config.dropout
        )
        self.recurrent.load_state_dict(drawn)


SPEC = ModelSpec(
    GRU4RecOfAuthors, GRU4RecConfig, about="GRU4Rec with dropout of every state"
)
