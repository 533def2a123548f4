"""GRU4Rec with what RecBole's has, to find why the figures of the two differ.

RecBole draws the item vectors and the recurrent weights by Glorot and Bengio's rules, so that the
item vectors are the smaller the more items there are, and its recurrent layer has no biases.
"""

from torch import nn

from posrec.models.baselines.gru4rec import GRU4Rec, GRU4RecConfig
from posrec.models.registry import ModelSpec


class GRU4RecOfRecBole(GRU4Rec):
    def __init__(self, items: int, config: GRU4RecConfig) -> None:
        super().__init__(items, config)
        self.recurrent.layers = nn.ModuleList(
            nn.GRU(config.d, config.hidden, bias=False, batch_first=True)
            for _ in self.recurrent.layers
        )
        for weights in self.recurrent.parameters():
            nn.init.xavier_uniform_(weights)
        for table in self.embedding.parameters():
            nn.init.xavier_normal_(table)
        if self.map is not None:
            self.map.reset_parameters()


SPEC = ModelSpec(
    GRU4RecOfRecBole, GRU4RecConfig, about="GRU4Rec with RecBole's initial weights"
)
