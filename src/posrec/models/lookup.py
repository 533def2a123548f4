"""Look up models by name: those of the registry, and users' own as `my_model.py:MY_SPEC` or `package.module:MY_SPEC`.

Loading a user's own model runs the code in that file. So only a name that the caller gives is ever loaded, never the
name in a run's config.json: opening a folder from an unknown source must not run code.
"""

import sys
import traceback
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from posrec.errors import InputError
from posrec.models.registry import MODELS, ModelSpec


def find_spec(model: str | ModelSpec) -> ModelSpec:
    """The spec of a model that is given by its name in the registry, as my_model.py:MY_SPEC, or as the spec itself."""
    if isinstance(model, ModelSpec):
        return model
    if is_own(model):
        return load_spec(model)
    if model not in MODELS:
        choice = f"{', '.join(MODELS)}, or your own as my_model.py:MY_SPEC"
        raise InputError(f"model {model!r} is not known; choose one of {choice}")
    return MODELS[model]


def model_name(model: str | ModelSpec) -> str:
    """The name of a model in config.json."""
    if isinstance(model, str):
        return resolved(model) if is_own(model) else model
    known = [name for name, spec in MODELS.items() if spec is model]
    return known[0] if known else f"{model.config.__module__}.{model.config.__qualname__}"


def is_own(name: str) -> bool:
    """Whether a name is that of a user's own model, FILE.py:SPEC or MODULE:SPEC, not of an entry of the registry."""
    return ":" in name


def resolved(name: str) -> str:
    """The same name with an absolute path, so that it is valid in any working directory."""
    source, _, variable = name.rpartition(":")
    return f"{Path(source).resolve()}:{variable}" if source.endswith(".py") else name


def load_spec(name: str) -> ModelSpec:
    """The ModelSpec called `name`; imports the file or module that defines it, which runs its code."""
    source, _, variable = resolved(name).rpartition(":")
    if source.endswith(".py") and not Path(source).is_file():
        raise InputError(f"--model {name}: there is no file {source}")
    try:
        module = import_file(Path(source)) if source.endswith(".py") else import_module(source)
    except Exception as error:  # the user's own code may raise anything
        at = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno})"
        raise InputError(f"--model {name} can't be loaded: {problem}") from error
    spec = getattr(module, variable, None)
    if not isinstance(spec, ModelSpec):
        found = "is missing" if spec is None else f"is a {type(spec).__name__}"
        raise InputError(f"--model {name}: {variable!r} {found} there; it must be a posrec.ModelSpec")
    return spec


def import_file(file: Path) -> ModuleType:
    """Import a file under a name of its own, so that it may have the same name as an installed module."""
    name = f"posrec_own_{file.stem}"
    found = spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    sys.modules[name] = module  # dataclasses look up their module there
    found.loader.exec_module(module)
    return module
