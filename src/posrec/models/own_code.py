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
    """The names of the code that a run needs, as the options --model and --encoding give them."""

    model: str | None = None
    encoding: str | None = None

    def check(self) -> "OwnCode":
        """Raise an InputError if a name can't be right, without running any code; returns the
        names."""
        for option, name in (("--model", self.model), ("--encoding", self.encoding)):
            if name is not None and is_own(name):
                require_file(name, option)
            elif name is not None and option == "--encoding":
                raise InputError(
                    f"--encoding {name}: write FILE.py:NAME, e.g. --encoding my_encoding.py:nearness"
                )
        return self


def is_own(name: str) -> bool:
    """Whether a name is that of a user's own code, FILE.py:NAME or MODULE:NAME, and not one of the
    package's names."""
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
    which runs its code.

    `option` is what error messages call the place where the name was given, e.g. "--model".
    """
    require_file(name, option)
    source, _, variable = resolved(name).rpartition(":")
    try:
        module = (
            import_file(Path(source))
            if source.endswith(".py")
            else import_module(source)
        )
    except Exception as error:  # the user's own code may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{source}.".startswith(
            f"{error.name}."
        ):
            hint = "write FILE.py:NAME, or a module that Python can import"
            raise InputError(
                f"{option} {name}: there is no module {error.name}; {hint}"
            ) from None
        problem = f"{type(error).__name__}: {error}"
        if not isinstance(error, SyntaxError):  # whose text has the line
            at = traceback.extract_tb(error.__traceback__)[-1]
            problem += f" ({at.filename}, line {at.lineno})"
        raise InputError(f"{option} {name} can't be loaded: {problem}") from error
    return getattr(module, variable, None)


def import_file(file: Path) -> ModuleType:
    """Import a file under a name of its own, so that it may have the same name as an installed
    module or another file."""
    name = f"posrec_own_{file.stem}_{zlib.crc32(str(file).encode()):08x}"
    found = spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    sys.modules[name] = module  # dataclasses look up their module there
    found.loader.exec_module(module)
    return module
