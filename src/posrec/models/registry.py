"""Every model by name: a literal dict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posrec.models.base import CountingModel, Model
from posrec.models.bprmf import BPRMF, BPRMFConfig
from posrec.models.fgnn import FGNN, FGNNConfig
from posrec.models.fpmc import FPMC, FPMCConfig
from posrec.models.gcsan import GCSAN, GCSANConfig
from posrec.models.gru4rec import GRU4Rec, GRU4RecConfig
from posrec.models.itemknn import ItemKNN, ItemKNNConfig
from posrec.models.narm import NARM, NARMConfig
from posrec.models.pop import Pop, PopConfig
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.sasrec import SASRec, SASRecConfig
from posrec.models.spop import SPop, SPopConfig
from posrec.models.srgnn import SRGNN, SRGNNConfig
from posrec.models.stamp import STAMP, STAMPConfig
from posrec.models.stan import STAN, STANConfig
from posrec.models.vsknn import VSKNN, VSKNNConfig


@dataclass(frozen=True)
class ModelSpec:
    """A model, its settings, and a line that says what it is.

    Args:
        model: a subclass of SessionModel (trained) or CountingModel (counted), called as `model(items, config)`.
        config: the dataclass of its settings; it has a field `max_length`, and every field has a default.
        about: a line for `posrec models`.
        settings: what its authors or the field train it with, where that is not what PosRec's paper says.

    >>> ModelSpec(Pop, PopConfig, "the most clicked items, for everyone").is_trained
    False
    """

    model: type[Model]
    config: type
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_trained(self) -> bool:
        return not issubclass(self.model, CountingModel)

    def build(self, items: int, config: Any) -> Model:
        """The model for items 1..items, not yet trained or counted."""
        return self.model(items, config)


# Pairs of items, as both papers train; no l2, which Adam would take out on items that were not drawn.
PAIRWISE = {"loss": "bpr", "sample_alpha": 0.5, "l2": 0.0}
# NARM's code: batches of 512; a larger rate and more epochs go with them, and a GPU is busy in each of the few steps.
RECURRENT = {"batch_size": 512, "learning_rate": 0.002, "epochs": 10, "decay_every": 7}
# The authors' code: batches of 512 at 0.003 for up to 10 epochs.
MEMORY = {"batch_size": 512, "learning_rate": 0.003, "epochs": 8, "decay_every": 5}

MODELS: dict[str, ModelSpec] = {
    "posrec": ModelSpec(PosRec, PosRecConfig, "graph, anchors, Transformer, dual positional encoding"),
    "pop": ModelSpec(Pop, PopConfig, "the most clicked items, for everyone"),
    "spop": ModelSpec(SPop, SPopConfig, "the most clicked items of the session, then the popular ones"),
    "itemknn": ModelSpec(ItemKNN, ItemKNNConfig, "items often seen in the same sessions as the last one"),
    "bprmf": ModelSpec(BPRMF, BPRMFConfig, "matrix factorisation; a session is the mean of its items", PAIRWISE),
    "fpmc": ModelSpec(FPMC, FPMCConfig, "a factorised Markov chain from the last item", PAIRWISE),
    "gru4rec": ModelSpec(GRU4Rec, GRU4RecConfig, "recurrent layers; ranking losses or cross entropy", RECURRENT),
    "narm": ModelSpec(NARM, NARMConfig, "a recurrent layer and attention from its last state", RECURRENT),
    "stamp": ModelSpec(STAMP, STAMPConfig, "attention from the last item and the mean", MEMORY),
    "srgnn": ModelSpec(SRGNN, SRGNNConfig, "gated graph, attention of the last item"),
    "fgnn": ModelSpec(FGNN, FGNNConfig, "weighted graph attention, a readout that asks in steps"),
    "gcsan": ModelSpec(GCSAN, GCSANConfig, "gated graph, self-attention among the nodes"),
    "sasrec": ModelSpec(SASRec, SASRecConfig, "causal Transformer over the clicks", {"batch_size": 128}),
    "vsknn": ModelSpec(VSKNN, VSKNNConfig, "what sessions like this one held; late clicks and rare items count"),
    "stan": ModelSpec(STAN, STANConfig, "what sessions like this one held; recent ones count, near clicks too"),
}
