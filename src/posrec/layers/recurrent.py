"""Gated recurrent layers over padded sessions (Cho et al., 2014).

r_t  = sigmoid(W_r x_t + U_r h_{t-1}),  z_t = sigmoid(W_z x_t + U_z h_{t-1})
c_t  = tanh(W x_t + r_t * (U h_{t-1}))
h_t  = (1 - z_t) * c_t + z_t * h_{t-1}

torch's layer, each product with a bias of its own. It applies the reset gate after the product with U where the papers
apply it before, and calls 1 - z what they call z; that is what GPUs have a kernel for. Sessions are padded on the
right, so a state never depends on padding: the states past a session's end are computed too, and nobody reads them.
Packing the sessions instead would have to read their lengths on the CPU.
"""

from torch import Tensor, nn


class Recurrent(nn.Module):
    """x [B, L, d] -> the top layer's states [B, L, hidden]. Dropout is between layers."""

    def __init__(self, d: int, hidden: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers={layers}: there must be at least one")
        self.layers = nn.ModuleList(
            nn.GRU(d if layer == 0 else hidden, hidden, batch_first=True) for layer in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x, _ = layer(x if number == 0 else self.dropout(x))
        return x
