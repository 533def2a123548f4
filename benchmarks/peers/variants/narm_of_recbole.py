"""NARM with RecBole's initial weights, to find why the figures of the two differ.

RecBole draws the item vectors, the matrices of the attention and the bilinear map by Glorot and
Bengio's normal rule, so that the item vectors are the smaller the more items there are. It leaves
the recurrent weights as PyTorch draws them, without biases.
"""

from torch import nn

from posrec.models.baselines.narm import NARM, NARMConfig
from posrec.models.registry import ModelSpec


class NARMOfRecBole(NARM):
    def __init__(self, items: int, config: NARMConfig) -> None:
        super().__init__(items, config)
        self.recurrent.layers = nn.ModuleList(
            nn.GRU(config.d, config.hidden, bias=False, batch_first=True)
            for _ in self.recurrent.layers
        )
        for table in self.embedding.parameters():
            nn.init.xavier_normal_(table)
        for layer in (self.of_last, self.of_each, self.match, self.bilinear):
            nn.init.xavier_normal_(layer.weight)


SPEC = ModelSpec(NARMOfRecBole, NARMConfig, about="NARM with RecBole's initial weights")
