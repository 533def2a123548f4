"""Every model by name: a literal dict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from posrec.models.fgnn import FGNN, FGNNConfig
from posrec.models.gcsan import GCSAN, GCSANConfig
from posrec.models.pop import Pop, PopConfig
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.sasrec import SASRec, SASRecConfig
from posrec.models.srgnn import SRGNN, SRGNNConfig


@dataclass(frozen=True)
class ModelSpec:
    """How to make a model for a number of items. Counting models are fitted by `count`, the others are trained.

    `settings` are what its authors or the field train it with, where that is not what PosRec's paper says.
    """

    build: Callable[[int, Any], nn.Module]
    config: type
    counts: bool
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)


CATALOG: dict[str, ModelSpec] = {
    "posrec": ModelSpec(PosRec, PosRecConfig, False, "graph, anchors, Transformer, dual positional encoding"),
    "pop": ModelSpec(Pop, PopConfig, True, "the most clicked items, for everyone"),
    "srgnn": ModelSpec(SRGNN, SRGNNConfig, False, "gated graph, attention of the last item"),
    "fgnn": ModelSpec(FGNN, FGNNConfig, False, "weighted graph attention, a readout that asks in steps"),
    "gcsan": ModelSpec(GCSAN, GCSANConfig, False, "gated graph, self-attention among the nodes"),
    "sasrec": ModelSpec(SASRec, SASRecConfig, False, "causal Transformer over the clicks"),
}
