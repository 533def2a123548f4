"""ModelSpec, the registry of every model of the package by name, and looking up models and
encodings: those of the package by name, users' own by name (`own_code.py`) or as objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from posrec.config import Choices, Range, SearchSpace, tuned_settings
from posrec.encodings.schemes import OwnEncoding
from posrec.errors import InputError, did_you_mean
from posrec.models.base import Model, SessionModel
from posrec.models.baselines.counting.coclick import CoClick, CoClickConfig
from posrec.models.baselines.counting.itemknn import ItemKNN, ItemKNNConfig
from posrec.models.baselines.counting.popularity import Pop, PopConfig, SPop, SPopConfig
from posrec.models.baselines.counting.stan import STAN, STANConfig
from posrec.models.baselines.counting.vsknn import VSKNN, VSKNNConfig
from posrec.models.baselines.factorization import BPRMF, FPMC, BPRMFConfig, FPMCConfig
from posrec.models.baselines.fgnn import FGNN, FGNNConfig
from posrec.models.baselines.gcsan import GCSAN, GCSANConfig
from posrec.models.baselines.gru4rec import GRU4Rec, GRU4RecConfig
from posrec.models.baselines.narm import NARM, NARMConfig
from posrec.models.baselines.sasrec import SASRec, SASRecConfig
from posrec.models.baselines.srgnn import SRGNN, SRGNNConfig
from posrec.models.baselines.stamp import STAMP, STAMPConfig
from posrec.models.own_code import is_own, load_named, resolved, wrong_kind
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig


@dataclass(frozen=True)
class ModelSpec:
    """A model class, the dataclass of its settings, and a line that describes it.

    Args:
        model: a subclass of SessionModel (trained) or CountingModel (counted), called as
            `model(items, config)`.
        config: the dataclass of its settings; it has a field `max_length`, and every field has a
            default.
        about: one line for `posrec models`.
        settings: settings of training whose defaults differ from those of `posrec train`.
        search: what `posrec tune` searches: settings of the model or of its training, with a tuple
            of values or a `posrec.Range` for each. By default learning rate, `decay_every`, batch
            size and l2 of a trained model, and what the config declares with `tune=`.

    >>> ModelSpec(Pop, PopConfig, "the most clicked items").is_trained
    False
    """

    model: type[Model]
    config: type
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    search: SearchSpace | None = None

    @property
    def search_space(self) -> SearchSpace:
        """What `posrec tune` searches; empty if there is nothing to tune."""
        if self.search is not None:
            return self.search
        training = TRAINING if self.is_trained else {}
        return {**training, **tuned_settings(self.config)}

    @property
    def is_trained(self) -> bool:
        return issubclass(self.model, SessionModel)

    def build(self, items: int, config: Any) -> Model:
        """The model for items 1..items, not yet trained or counted."""
        if not hasattr(config, "max_length"):
            raise InputError(
                f"{type(config).__name__} must have a field max_length: "
                "how many clicks the model reads"
            )
        if config.max_length < 1:
            raise InputError(f"max_length must be at least 1, not {config.max_length}")
        try:
            return self.model(items, config)
        except ValueError as error:
            raise InputError(str(error)) from None


# What `posrec tune` searches of the training by default. Every space contains the defaults.
TRAINING: dict[str, Range | Choices] = {
    "learning_rate": Range(3e-4, 1e-2),
    "batch_size": (100, 128, 256, 512),
    "l2": (0.0, 1e-6, 1e-5, 1e-4),
    "decay_every": (3, 5, 7, 10),
}

# The pairwise loss of both papers; no l2, because Adam would shrink the items that were not drawn.
PAIRWISE = {"loss": "bpr", "sample_alpha": 0.5, "l2": 0.0}
PAIRWISE_SEARCH = {**TRAINING, "sample_alpha": (0.0, 0.25, 0.5, 0.75)}
# NARM's code has batches of 512, which need a higher learning rate and more epochs.
RECURRENT = {"batch_size": 512, "learning_rate": 0.002, "epochs": 10, "decay_every": 7}
# STAMP's code has batches of 512, a learning rate of 0.003 and up to 10 epochs.
MEMORY = {"batch_size": 512, "learning_rate": 0.003, "epochs": 8, "decay_every": 5}

# Large batches use a GPU well, and need a learning rate that rises and falls.
PLUS = {
    "protocol": "refit",
    "epochs": 6,
    "extend": True,
    "batch_size": 2048,
    "learning_rate": 0.003,
    "schedule": "cosine",
    "warmup": 0.05,
    "recency": 1.0,
    "replay": 4.0,
    "l2": 0.0,
    "choose_by": "ndcg@20",
}
PLUS_SEARCH: dict[str, Range | Choices] = {
    "learning_rate": Range(5e-4, 5e-3),
    "batch_size": (256, 512, 1024, 2048),
    "recency": (0.0, 1.0, 2.0),
}

MODELS: dict[str, ModelSpec] = {
    "posrec": ModelSpec(
        PosRec, PosRecConfig, "graph, anchors, Transformer, dual positional encoding"
    ),
    "posrec-plus": ModelSpec(
        PosRecPlus,
        PosRecPlusConfig,
        "reads a session once; smoothed items, repeats; the default",
        PLUS,
        PLUS_SEARCH | tuned_settings(PosRecPlusConfig),
    ),
    "pop": ModelSpec(
        Pop, PopConfig, "the most clicked items, the same for every session"
    ),
    "spop": ModelSpec(
        SPop, SPopConfig, "the most clicked items of the session, then the popular ones"
    ),
    "itemknn": ModelSpec(
        ItemKNN, ItemKNNConfig, "items often seen in the same sessions as the last one"
    ),
    "bprmf": ModelSpec(
        BPRMF,
        BPRMFConfig,
        "matrix factorisation; a session is the mean of its items",
        PAIRWISE,
        PAIRWISE_SEARCH | tuned_settings(BPRMFConfig),
    ),
    "fpmc": ModelSpec(
        FPMC,
        FPMCConfig,
        "a factorised Markov chain from the last item",
        PAIRWISE,
        PAIRWISE_SEARCH | tuned_settings(FPMCConfig),
    ),
    "gru4rec": ModelSpec(
        GRU4Rec,
        GRU4RecConfig,
        "recurrent layers; ranking losses or cross entropy",
        RECURRENT,
    ),
    "narm": ModelSpec(
        NARM, NARMConfig, "a recurrent layer, attention from its last state", RECURRENT
    ),
    "stamp": ModelSpec(
        STAMP, STAMPConfig, "attention from the last item and the mean", MEMORY
    ),
    "srgnn": ModelSpec(SRGNN, SRGNNConfig, "gated graph, attention from the last item"),
    "fgnn": ModelSpec(FGNN, FGNNConfig, "weighted graph attention, Set2Set readout"),
    "gcsan": ModelSpec(
        GCSAN, GCSANConfig, "gated graph, self-attention among the nodes"
    ),
    "sasrec": ModelSpec(
        SASRec, SASRecConfig, "causal Transformer over the clicks", {"batch_size": 128}
    ),
    "vsknn": ModelSpec(
        VSKNN, VSKNNConfig, "nearest sessions; late clicks and rare items weigh more"
    ),
    "stan": ModelSpec(
        STAN,
        STANConfig,
        "nearest sessions; late clicks, recent sessions and near items weigh more",
    ),
    "coclick": ModelSpec(
        CoClick,
        CoClickConfig,
        "items clicked near those of the session, and its own items",
    ),
}


def find_spec(model: str | ModelSpec) -> ModelSpec:
    """The spec of a model: a name of the registry, my_model.py:MY_SPEC (whose code this runs), or
    the spec itself."""
    if isinstance(model, ModelSpec):
        return model
    if is_own(model):
        spec = load_named(model, "--model")
        if not isinstance(spec, ModelSpec):
            raise wrong_kind(model, "--model", spec, "a posrec.ModelSpec")
        return spec
    if model not in MODELS:
        choice = f"{', '.join(MODELS)}, or your own as my_model.py:MY_SPEC"
        raise InputError(
            f"model {model!r} is not known{did_you_mean(model, MODELS)}; choose one of {choice}"
        )
    return MODELS[model]


def model_name(model: str | ModelSpec) -> str:
    """The name of a model in config.json."""
    if isinstance(model, str):
        return resolved(model) if is_own(model) else model
    for name, spec in MODELS.items():
        if spec is model:
            return name
    return f"{model.config.__module__}.{model.config.__qualname__}"


def short_name(model: str | ModelSpec) -> str:
    """What tables call a model: MINE of my_model.py:MINE; the class of a spec without a name."""
    if isinstance(model, str):
        return model.rpartition(":")[2]
    name = model_name(model)
    return name if name in MODELS else model.model.__name__


def find_encoding(encoding: Any) -> Any:
    """An encoding of a user's own, given as `my_encoding.py:NAME`, a function, a module or a module
    class, as an OwnEncoding, which a config holds like a name; names stay as they are."""
    if isinstance(encoding, OwnEncoding):
        return encoding
    if isinstance(encoding, str):
        if not is_own(encoding):
            return encoding
        scheme = load_named(encoding, "encoding")
        if not callable(scheme):
            kind = "a function, a module or a module class"
            raise wrong_kind(encoding, "encoding", scheme, kind)
        return OwnEncoding.of(resolved(encoding), scheme)
    if not callable(encoding):
        return encoding  # a setting of another kind, of a user's own model
    named = encoding
    if isinstance(encoding, nn.Module) or not hasattr(encoding, "__qualname__"):
        named = type(encoding)
    return OwnEncoding.of(f"{named.__module__}:{named.__qualname__}", encoding)


def with_own_encoding(settings: dict[str, Any]) -> dict[str, Any]:
    if "encoding" not in settings:
        return settings
    return {**settings, "encoding": find_encoding(settings["encoding"])}
