"""Gated recurrent layers over padded sessions (Cho et al., 2014).

r_t  = sigmoid(W_r x_t + U_r h_{t-1}),  z_t = sigmoid(W_z x_t + U_z h_{t-1})
c_t  = tanh(W x_t + r_t * (U h_{t-1}))
h_t  = (1 - z_t) * c_t + z_t * h_{t-1}

This is torch's layer: it applies the reset gate after the product with U, where the papers apply it
before. Sessions are padded on the right, so a state never depends on padding."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from posrec.nn.batch import at_last_click


class Recurrent(nn.Module):
    """x [B, L, d] -> the top layer's states [B, L, hidden]. Dropout is between layers."""

    def __init__(
        self, d: int, hidden: int, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be at least 1, not {layers}")
        widths = [d, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList(
            nn.GRU(width, hidden, batch_first=True) for width in widths
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.every_layer(x)[-1]

    def every_layer(self, x: Tensor) -> list[Tensor]:
        """The states of each layer, [B, L, hidden] each, bottom-up."""
        states: list[Tensor] = []
        for layer in self.layers:
            inputs = self.dropout(states[-1]) if states else x
            states.append(layer(inputs)[0])
        return states

    def last_step(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The top layer's state at the last click, [B, hidden], with a gradient through the step of
        that click only."""
        with torch.no_grad():
            before = [
                at_last_click(pad(states, (0, 0, 1, 0)), lengths)
                for states in self.every_layer(x)
            ]
        step = at_last_click(x, lengths)[:, None]  # [B, 1, d]
        for number, (layer, state) in enumerate(zip(self.layers, before, strict=True)):
            inputs = step if number == 0 else self.dropout(step)
            step, _ = layer(inputs, state[None])
        return step[:, 0]
