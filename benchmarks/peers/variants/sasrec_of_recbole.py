"""SASRec with what RecBole's has, to find why the figures of the two differ.

RecBole takes the layer of its other Transformers, which is not that of Eq. (5) of SASRec's paper.
It normalises the clicks' vectors before the first layer, and not the result of the last one.
"""

import math

import torch
from torch import Tensor, nn

from benchmarks.peers.variants.recbole_layer import SPREAD, RecBoleLayer
from posrec.models.baselines.sasrec import SASRec, SASRecConfig
from posrec.models.registry import ModelSpec
from posrec.nn.packing import Packing


class CausalLayer(RecBoleLayer):
    """A click attends to itself and to those before it."""

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        shape = (1, 1, packing.longest, packing.longest)
        not_later = torch.full(shape, -math.inf, device=x.device).triu(1)
        return super().forward(x, packing, not_later, rows)


class NormalizedFirst(CausalLayer):
    """The first layer, with a layer norm and dropout before it."""

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__(d, heads, dropout)
        self.norm = nn.LayerNorm(d)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        return super().forward(self.dropout(self.norm(x)), packing, bias, rows)


class SASRecOfRecBole(SASRec):
    def __init__(self, items: int, config: SASRecConfig) -> None:
        super().__init__(items, config)
        options = (config.d, config.heads, config.dropout)
        others = [CausalLayer(*options) for _ in range(config.layers - 1)]
        self.layers = nn.ModuleList([NormalizedFirst(*options), *others])
        # The dropout of the clicks' vectors comes after the layer norm.
        self.add_module("dropout", nn.Identity())
        self.add_module("norm", nn.Identity())
        self.draw_weights(0.0, SPREAD)


SPEC = ModelSpec(
    SASRecOfRecBole, SASRecConfig, about="SASRec with the layer of RecBole's"
)
