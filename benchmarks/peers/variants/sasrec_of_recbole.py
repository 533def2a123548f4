"""SASRec with what RecBole's has, to find why the figures of the two differ.

RecBole takes the layer of its other Transformers, which is not that of Eq. (5) of SASRec's paper.
It normalises the clicks' vectors before the first layer, and not the result of the last one.
"""

from torch import Tensor, nn

from benchmarks.peers.variants.recbole_layer import RecBoleLayer, draw
from posrec.models.baselines.sasrec import SASRec, SASRecConfig
from posrec.models.registry import ModelSpec


class NormalizedFirst(nn.Module):
    """The first layer, with a layer norm and dropout before it."""

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.dropout = nn.Dropout(dropout)
        self.layer = RecBoleLayer(d, heads, dropout, causal=True)

    def forward(self, x: Tensor, *mixing: object, **named: object) -> Tensor:
        result: Tensor = self.layer(self.dropout(self.norm(x)), *mixing, **named)
        return result


class SASRecOfRecBole(SASRec):
    def __init__(self, items: int, config: SASRecConfig) -> None:
        super().__init__(items, config)
        options = (config.d, config.heads, config.dropout)
        others = [RecBoleLayer(*options, causal=True) for _ in range(config.layers - 1)]
        self.layers = nn.ModuleList([NormalizedFirst(*options), *others])
        # The dropout of the clicks' vectors comes after the layer norm.
        self.add_module("dropout", nn.Identity())
        self.add_module("norm", nn.Identity())
        draw(self)


SPEC = ModelSpec(
    SASRecOfRecBole, SASRecConfig, about="SASRec with the layer of RecBole's"
)
