"""A stand-in for a package that is imported and not used: it has every module and every name.

offline.py copies it.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# pandas uses pyarrow from 10.0.1 on, and torch refuses tensorboard before 1.15.
__version__ = "2"


class EveryName(type):
    def __getattr__(cls, name: str) -> Any:
        return __getattr__(name)


class Nothing(metaclass=EveryName):
    """What every name stands for: a class whose objects do nothing, whatever is asked."""

    def __init__(self, *_: Any, **named: Any) -> None:
        pass

    def __call__(self, *_: Any, **named: Any) -> "Nothing":
        return self

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: object) -> "Nothing":
        return self

    def __iter__(self) -> Iterator["Nothing"]:
        return iter(())

    def __fspath__(self) -> str:
        return "nothing"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing


class EveryModule(MetaPathFinder, Loader):
    """Finds what is imported from below this package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(f"{__name__}."):
            return ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = __getattr__


sys.meta_path.append(EveryModule())
