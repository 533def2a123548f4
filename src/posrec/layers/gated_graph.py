"""Gated graph layer: Eq. (7) and (8), the message from both directions and the gated update.

m_t  = sum_{t'} A_in[t, t'] x_{t'} W_in  ||  sum_{t'} A_out[t, t'] x_{t'} W_out
x'_t = GRU(x_t, m_t)
"""

import torch
from torch import Tensor, nn

from posrec.layers.linear import linear
from posrec.layers.messages import messages
from posrec.layers.packing import Packing


class GatedGraph(nn.Module):
    """x [T, d], weights [B, 2, L, L] (incoming and outgoing; row: who receives, column: who sends) -> x' [T, d]."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.from_node = nn.Linear(d, 5 * d)  # W_in || W_out || the GRU's three gates, in one product
        self.from_message = nn.Linear(2 * d, 3 * d)
        self.d = d

    def forward(self, x: Tensor, weights: Tensor, packing: Packing) -> Tensor:
        sent, gates = linear(self.from_node, x).tensor_split([2 * self.d], dim=-1)
        message = messages(sent, weights, packing)
        reset_m, update_m, new_m = linear(self.from_message, message).chunk(3, dim=-1)
        reset_x, update_x, new_x = gates.chunk(3, dim=-1)
        reset, update = torch.sigmoid(reset_m + reset_x), torch.sigmoid(update_m + update_x)
        new = torch.tanh(new_m + reset * new_x)
        return new + update * (x - new)
