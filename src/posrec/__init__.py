"""posrec: from click log to next-item recommendations, with position as information.

This is the public interface: what is listed in `__all__` stays, and so does
`posrec.testing.check_model`; everything else may move. Names are imported when first used, so that
`import posrec` is quick and pulls in neither polars, matplotlib nor a server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posrec.device import share_cores
from posrec.version import __version__ as __version__

if TYPE_CHECKING:
    from posrec.config import Range as Range, setting as setting
    from posrec.data.dataset import (
        PreparedDataset as PreparedDataset,
        SessionDataset as SessionDataset,
        collate as collate,
        load as load,
    )
    from posrec.data.prepare.pipeline import prepare as prepare
    from posrec.data.vocabulary import Vocabulary as Vocabulary
    from posrec.encodings.awareness import analyse as analyse
    from posrec.encodings.schemes import (
        attention_bias as attention_bias,
        make_encoding as make_encoding,
    )
    from posrec.errors import InputError as InputError
    from posrec.experiments.compare import compare as compare
    from posrec.experiments.positions import positions as positions
    from posrec.experiments.tune import tune as tune
    from posrec.fitting.evaluate_run import evaluate as evaluate
    from posrec.fitting.fit import fit as fit, fit_run as fit_run
    from posrec.models.base import (
        CountingModel as CountingModel,
        SessionModel as SessionModel,
    )
    from posrec.models.registry import ModelSpec as ModelSpec
    from posrec.nn.batch import SessionBatch as SessionBatch
    from posrec.nn.items.item_table import ItemTable as ItemTable
    from posrec.progress import Progress as Progress, SilentProgress as SilentProgress
    from posrec.recommend.rank.encoder import OnnxModel as OnnxModel
    from posrec.recommend.recommender import Recommender as Recommender
    from posrec.recommend.results import (
        Explanation as Explanation,
        Recommendation as Recommendation,
    )
    from posrec.runs.run import load_run as load_run

share_cores()  # before anything here loads torch

_NAMES = {
    "posrec.config": ("Range", "setting"),
    "posrec.data.dataset": ("PreparedDataset", "SessionDataset", "collate", "load"),
    "posrec.data.prepare.pipeline": ("prepare",),
    "posrec.data.vocabulary": ("Vocabulary",),
    "posrec.encodings.awareness": ("analyse",),
    "posrec.encodings.schemes": ("attention_bias", "make_encoding"),
    "posrec.errors": ("InputError",),
    "posrec.experiments.compare": ("compare",),
    "posrec.experiments.positions": ("positions",),
    "posrec.experiments.tune": ("tune",),
    "posrec.fitting.evaluate_run": ("evaluate",),
    "posrec.fitting.fit": ("fit", "fit_run"),
    "posrec.models.base": ("CountingModel", "SessionModel"),
    "posrec.models.registry": ("ModelSpec",),
    "posrec.nn.batch": ("SessionBatch",),
    "posrec.nn.items.item_table": ("ItemTable",),
    "posrec.progress": ("Progress", "SilentProgress"),
    "posrec.recommend.rank.encoder": ("OnnxModel",),
    "posrec.recommend.recommender": ("Recommender",),
    "posrec.recommend.results": ("Explanation", "Recommendation"),
    "posrec.runs.run": ("load_run",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'posrec' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
