"""The layer of RecBole's Transformers, which its SASRec and its GC-SAN share.

The layer norms come after the residual connections, the activation is GELU, and the feed-forward
has a width of its own.
"""

from torch import Tensor, nn
from torch.nn import functional

from posrec.nn.layers.transformer import self_attention
from posrec.nn.packing import Packing

INNER_WIDTH = 256
SPREAD = 0.02


class RecBoleLayer(nn.Module):
    """x [T, d] -> [T, d]; with `rows [R]`, these rows of it.

    y = LayerNorm(x + dropout(W dropout(softmax(Q K^T / sqrt(d_head))) V)),  Q, K, V of x
    result = LayerNorm(y + dropout(W_2 gelu(W_1 y)))
    """

    def __init__(
        self, d: int, heads: int = 1, dropout: float = 0.0, causal: bool = False
    ) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.queries_keys_values = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.attention_norm = nn.LayerNorm(d)
        self.first = nn.Linear(d, INNER_WIDTH)
        self.second = nn.Linear(INNER_WIDTH, d)
        self.feed_forward_norm = nn.LayerNorm(d)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        projected = self.queries_keys_values(x)
        attended = self_attention(
            projected, self.heads, packing, bias, self.dropout, self.causal
        )
        if rows is not None:
            x = x[rows]
            attended = attended[rows]
        y = self.attention_norm(x + self.dropout(self.out(attended)))
        inner = self.second(functional.gelu(self.first(y)))
        result: Tensor = self.feed_forward_norm(y + self.dropout(inner))
        return result


def draw(*parts: nn.Module) -> None:
    """Draw weights as RecBole does: matrices from a normal distribution, biases 0."""
    for part in parts:
        for module in part.modules():
            if isinstance(module, nn.LayerNorm):
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=SPREAD)
                else:
                    nn.init.zeros_(parameter)
