"""posrec: from click log to next-item recommendations, with position as information.

The public interface. Names are imported when first used, so that `import posrec` stays quick and pulls in neither
polars, matplotlib nor a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posrec.errors import InputError as InputError

__version__ = "0.1.0"

_HOME = {
    "InputError": "posrec.errors",
}

__all__ = ["InputError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'posrec' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
