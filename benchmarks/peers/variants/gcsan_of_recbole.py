"""GC-SAN with what RecBole's has, to find why the figures of the two differ.

RecBole takes the layer of its Transformers, which has a residual connection around the attention,
layer norms and a wider feed-forward. That of GC-SAN's paper, and of posrec, has none of these.
RecBole draws the weights of this layer and the item vectors from a normal distribution, posrec
uniformly. RecBole also draws two matrices of the graph layer so, which here are drawn as in posrec.
"""

from copy import deepcopy

from torch import nn

from benchmarks.peers.variants.recbole_layer import SPREAD, RecBoleLayer
from posrec.models.baselines.gcsan import GCSAN, GCSANConfig
from posrec.models.registry import ModelSpec


class GCSANOfRecBole(GCSAN):
    def __init__(self, items: int, config: GCSANConfig) -> None:
        super().__init__(items, config)
        self.attention = nn.ModuleList(
            RecBoleLayer(config.d) for _ in range(config.layers)
        )
        graph_weights = deepcopy(self.graph.state_dict())
        self.draw_weights(0.0, SPREAD)
        self.graph.load_state_dict(graph_weights)


SPEC = ModelSpec(
    GCSANOfRecBole,
    GCSANConfig,
    about="GC-SAN with RecBole's self-attention layer and initial weights",
)
