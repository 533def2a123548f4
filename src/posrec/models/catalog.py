"""Every model by name: a literal dict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from posrec.models.bprmf import BprMf, BprMfConfig
from posrec.models.fpmc import Fpmc, FpmcConfig
from posrec.models.gru4rec import Gru4Rec, Gru4RecConfig
from posrec.models.narm import Narm, NarmConfig
from posrec.models.pop import Pop, PopConfig
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.stamp import Stamp, StampConfig


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
    "bprmf": ModelSpec(BprMf, BprMfConfig, False, "matrix factorisation, a session is the mean of its items", {}),
    "fpmc": ModelSpec(Fpmc, FpmcConfig, False, "a factorised Markov chain from the last item", {}),
    "gru4rec": ModelSpec(Gru4Rec, Gru4RecConfig, False, "recurrent layers, ranking losses", {}),
    "narm": ModelSpec(Narm, NarmConfig, False, "recurrent layer with attention from its last state", {}),
    "stamp": ModelSpec(Stamp, StampConfig, False, "attention from the last item and the mean", {}),
}
