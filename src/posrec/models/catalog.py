"""Every model by name: a literal dict."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from posrec.models.pop import Pop, PopConfig
from posrec.models.posrec import PosRec, PosRecConfig


@dataclass(frozen=True)
class ModelSpec:
    """How to make a model for a number of items. Counting models are fitted by `count`, the others are trained."""

    build: Callable[[int, Any], nn.Module]
    config: type
    counts: bool
    about: str


CATALOG: dict[str, ModelSpec] = {
    "posrec": ModelSpec(PosRec, PosRecConfig, False, "graph, anchors, Transformer, dual positional encoding"),
    "pop": ModelSpec(Pop, PopConfig, True, "the most clicked items, for everyone"),
}
