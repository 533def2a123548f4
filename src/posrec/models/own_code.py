"""A user's own code, given as `FILE.py:NAME` or `package.module:NAME`: models and positional
encodings.

Loading such a name runs the code in that file. So only a name that the caller gives is ever loaded,
never the name in a run's config.json: opening a folder from an unknown source must not run code.

This file does not import torch: the parent process of several server workers reads `OwnCode` and
never loads torch."""

import sys
import traceback
import zlib
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from posrec.errors import InputError


@dataclass(frozen=True)
class OwnCode:
    """The code that a run needs, or its names, as the options --model and --encoding give them."""

    model: Any = None
    encoding: Any = None

    def check(self) -> "OwnCode":
        """Raise an InputError if a name can't be right, without running any code; returns the
        names."""
        if self.model is not None and is_own(self.model):
            require_file(self.model, "--model")
        if self.encoding is not None:
            if not is_own(self.encoding):
                raise InputError(
                    f"--encoding {self.encoding}: write FILE.py:NAME, "
                    "e.g. --encoding my_encoding.py:nearness"
                )
            require_file(self.encoding, "--encoding")
        return self


def is_own(name: str) -> bool:
    """Whether a name is that of a user's own code, and not one of the package's names."""
    return ":" in name


def resolved(name: str) -> str:
    """The same name with an absolute path, so that it is valid in any working directory."""
    source, _, variable = name.rpartition(":")
    return f"{Path(source).resolve()}:{variable}" if source.endswith(".py") else name


def require_file(name: str, option: str) -> None:
    source = resolved(name).rpartition(":")[0]
    if source.endswith(".py") and not Path(source).is_file():
        raise InputError(f"{option} {name}: there is no file {source}")


def load_named(name: str, option: str) -> Any:
    """The object called `name`, or None if its file has no such name; imports the file or module,
    which runs its code. In messages, `option` is where the name was given, e.g. "--model"."""
    require_file(name, option)
    source, _, variable = resolved(name).rpartition(":")
    try:
        is_file = source.endswith(".py")
        module = import_file(Path(source)) if is_file else import_module(source)
    except Exception as error:  # the user's own code may raise anything
        raise InputError(f"{option} {name}{reason(error, source)}") from error
    return getattr(module, variable, None)


def reason(error: Exception, source: str) -> str:
    """Why `source` could not be imported."""
    if isinstance(error, ModuleNotFoundError) and f"{source}.".startswith(
        f"{error.name}."
    ):
        hint = "write FILE.py:NAME, or a module that Python can import"
        return f": there is no module {error.name}; {hint}"
    text = f" can't be loaded: {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # its text has the line
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({frame.filename}, line {frame.lineno})"


def wrong_kind(name: str, option: str, loaded: object, kind: str) -> InputError:
    """The error that what `load_named` returned is not of the right kind."""
    if loaded is None:
        state = "is missing"
    elif isinstance(loaded, type):
        state = "is a class"
    else:
        state = f"is of type {type(loaded).__name__}"
    variable = name.rpartition(":")[2]
    return InputError(f"{option} {name}: {variable!r} {state} there; it must be {kind}")


def import_file(file: Path) -> ModuleType:
    """Import a file under a name that no installed module and no other file has."""
    name = f"posrec_own_{file.stem}_{zlib.crc32(str(file).encode()):08x}"
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module
