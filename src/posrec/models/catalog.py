"""Every model by name: a literal dict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from posrec.models.itemknn import ItemKNN, ItemKNNConfig
from posrec.models.pop import Pop, PopConfig
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.spop import SPop, SPopConfig
from posrec.models.stan import STAN, STANConfig
from posrec.models.vsknn import VSKNN, VSKNNConfig


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
    "spop": ModelSpec(SPop, SPopConfig, True, "the most clicked items of the session, then the popular ones"),
    "itemknn": ModelSpec(ItemKNN, ItemKNNConfig, True, "items often seen in the same sessions as the last one"),
    "vsknn": ModelSpec(VSKNN, VSKNNConfig, True, "what sessions like this one held; late clicks and rare items count"),
    "stan": ModelSpec(STAN, STANConfig, True, "what sessions like this one held; recent ones count, near clicks too"),
}
