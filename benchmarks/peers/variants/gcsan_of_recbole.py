"""GC-SAN with what RecBole's has, to find why the figures of the two differ.

RecBole takes the layer of its Transformers, which has a residual connection around the attention,
layer norms and a wider feed-forward. That of GC-SAN's paper, and of posrec, has none of these.
RecBole draws the weights of this layer and the item vectors from a normal distribution, posrec
uniformly.
"""

from torch import Tensor, nn

from posrec.models.baselines.gcsan import GCSAN, GCSANConfig
from posrec.models.registry import ModelSpec
from posrec.nn.packing import Packing

INNER_WIDTH = 256
SPREAD = 0.02


class RecBoleLayer(nn.Module):
    """x [T, d] -> [T, d]; with `rows [R]`, these rows of it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            d, 1, INNER_WIDTH, dropout=0.0, activation="gelu", batch_first=True
        )

    def forward(
        self, x: Tensor, packing: Packing, rows: Tensor | None = None
    ) -> Tensor:
        slots = packing.to_slots(x)
        result = packing.to_rows(
            self.layer(slots, src_key_padding_mask=~packing.filled)
        )
        return result if rows is None else result[rows]


class GCSANOfRecBole(GCSAN):
    def __init__(self, items: int, config: GCSANConfig) -> None:
        super().__init__(items, config)
        self.attention = nn.ModuleList(
            RecBoleLayer(config.d) for _ in range(config.layers)
        )
        for part in (self.embedding, self.attention):
            for parameter in part.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=SPREAD)


SPEC = ModelSpec(
    GCSANOfRecBole,
    GCSANConfig,
    about="GC-SAN with RecBole's self-attention layer and initial weights",
)
