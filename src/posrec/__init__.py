"""posrec: from click log to next-item recommendations, with position as information.

The public interface. Names are imported when first used, so that `import posrec` stays quick and pulls in neither
polars, matplotlib nor a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posrec.data.batch import SessionBatch as SessionBatch
    from posrec.data.batch import collate as collate
    from posrec.data.prepare import prepare as prepare
    from posrec.data.sessions import PreparedDataset as PreparedDataset
    from posrec.data.sessions import SessionDataset as SessionDataset
    from posrec.data.sessions import load as load
    from posrec.data.vocabulary import Vocabulary as Vocabulary
    from posrec.errors import InputError as InputError
    from posrec.fitting import fit as fit
    from posrec.serving.recommender import Recommender as Recommender

__version__ = "0.1.0"

_HOME = {
    "SessionBatch": "posrec.data.batch",
    "collate": "posrec.data.batch",
    "prepare": "posrec.data.prepare",
    "PreparedDataset": "posrec.data.sessions",
    "SessionDataset": "posrec.data.sessions",
    "load": "posrec.data.sessions",
    "Vocabulary": "posrec.data.vocabulary",
    "InputError": "posrec.errors",
    "fit": "posrec.fitting",
    "Recommender": "posrec.serving.recommender",
}

__all__ = [
    "InputError",
    "PreparedDataset",
    "Recommender",
    "SessionBatch",
    "SessionDataset",
    "Vocabulary",
    "__version__",
    "collate",
    "fit",
    "load",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'posrec' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
