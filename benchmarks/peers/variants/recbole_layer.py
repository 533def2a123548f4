"""The layer of RecBole's Transformers, which its SASRec and its GC-SAN share: that of posrec's
Transformers with GELU in place of ReLU."""

from torch import Tensor
from torch.nn import functional

from posrec.nn.layers.transformer import TransformerLayer

INNER_WIDTH = 256  # of the feed-forward
SPREAD = 0.02  # of the initial weights


class RecBoleLayer(TransformerLayer):
    def __init__(self, d: int, heads: int = 1, dropout: float = 0.0) -> None:
        super().__init__(d, heads, INNER_WIDTH, dropout)

    def fed_forward(self, x1: Tensor) -> Tensor:
        inner = functional.gelu(self.widen(x1))
        x2: Tensor = self.after_feed_forward(x1 + self.dropout(self.narrow(inner)))
        return x2
