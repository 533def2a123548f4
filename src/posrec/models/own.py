"""Models by name: those of the registry, and one's own as `my_model.py:MY_SPEC` or `package.module:MY_SPEC`.

Finding it runs the code that is named. So only what a caller names is ever loaded, never what a run's config.json
names: a folder from elsewhere must not be able to start code by being opened.
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
    """A model of the registry by its name, one's own as my_model.py:MY_SPEC, or the spec itself."""
    if isinstance(model, ModelSpec):
        return model
    if is_own(model):
        return load_spec(model)
    if model not in MODELS:
        choice = f"{', '.join(MODELS)}, or your own as my_model.py:MY_SPEC"
        raise InputError(f"model {model!r} is not known; choose one of {choice}")
    return MODELS[model]


def model_name(model: str | ModelSpec) -> str:
    """What config.json calls a model."""
    if isinstance(model, str):
        return resolved(model) if is_own(model) else model
    known = [name for name, spec in MODELS.items() if spec is model]
    return known[0] if known else f"{model.config.__module__}.{model.config.__qualname__}"


def is_own(name: str) -> bool:
    """Whether a model's name names code, not an entry of the registry."""
    return ":" in name


def resolved(name: str) -> str:
    """The same name, good from any working directory."""
    where, _, variable = name.rpartition(":")
    return f"{Path(where).resolve()}:{variable}" if where.endswith(".py") else name


def load_spec(name: str) -> ModelSpec:
    """The ModelSpec that `name` names; runs the code it stands in."""
    where, _, variable = resolved(name).rpartition(":")
    if where.endswith(".py") and not Path(where).is_file():
        raise InputError(f"--model {name}: there is no file {where}")
    try:
        module = import_file(Path(where)) if where.endswith(".py") else import_module(where)
    except Exception as error:  # the user's own code: anything can go wrong in it
        at = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno})"
        raise InputError(f"--model {name} can't be loaded: {told}") from error
    spec = getattr(module, variable, None)
    if not isinstance(spec, ModelSpec):
        found = "is missing" if spec is None else f"is a {type(spec).__name__}"
        raise InputError(f"--model {name}: {variable!r} {found} there; it must be a posrec.ModelSpec")
    return spec


def import_file(file: Path) -> ModuleType:
    """Import under a name of its own, so that my_model.py may be called like a module that is installed."""
    name = f"posrec_own_{file.stem}"
    found = spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up there
    found.loader.exec_module(module)
    return module
