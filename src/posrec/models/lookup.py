"""Look up models and encodings: those of the package by name, and users' own by name (own_code.py) or as objects."""

from typing import Any

from torch import nn

from posrec.encodings.own import OwnEncoding
from posrec.errors import InputError, did_you_mean
from posrec.models.own_code import is_own, load_named, resolved
from posrec.models.registry import MODELS, ModelSpec


def find_spec(model: str | ModelSpec) -> ModelSpec:
    """The spec of a model that is given by its name in the registry, as my_model.py:MY_SPEC, or as the spec itself."""
    if isinstance(model, ModelSpec):
        return model
    if is_own(model):
        return load_spec(model)
    if model not in MODELS:
        choice = f"{', '.join(MODELS)}, or your own as my_model.py:MY_SPEC"
        raise InputError(f"model {model!r} is not known{did_you_mean(model, MODELS)}; choose one of {choice}")
    return MODELS[model]


def model_name(model: str | ModelSpec) -> str:
    """The name of a model in config.json."""
    if isinstance(model, str):
        return resolved(model) if is_own(model) else model
    known = [name for name, spec in MODELS.items() if spec is model]
    return known[0] if known else f"{model.config.__module__}.{model.config.__qualname__}"


def short_name(model: str | ModelSpec) -> str:
    """What tables call a model: my_model.py:MINE is called MINE, and a spec that has no name by its class."""
    if isinstance(model, str):
        return model.rpartition(":")[2]
    name = model_name(model)
    return name if name in MODELS else model.model.__name__


def load_spec(name: str) -> ModelSpec:
    """The ModelSpec called `name`, which runs the code that defines it."""
    spec = load_named(name, "--model")
    if not isinstance(spec, ModelSpec):
        found = described(spec)
        variable = name.rpartition(":")[2]
        raise InputError(f"--model {name}: {variable!r} {found} there; it must be a posrec.ModelSpec")
    return spec


def described(found: object) -> str:
    """What was found under a name, for an error message."""
    if found is None:
        return "is missing"
    return "is a class" if isinstance(found, type) else f"is of type {type(found).__name__}"


def find_encoding(encoding: Any) -> Any:
    """An encoding of a user's own as an OwnEncoding, which a model's config holds like a name; names stay as they are.

    Args:
        encoding: a name of `posrec encodings`; `"my_encoding.py:NAME"` or `"module:NAME"`; a function, a module or a
            module class.
    """
    if isinstance(encoding, OwnEncoding) or (isinstance(encoding, str) and not is_own(encoding)):
        return encoding
    if isinstance(encoding, str):
        scheme = load_named(encoding, "encoding")
        if not callable(scheme):
            found = described(scheme)
            variable = encoding.rpartition(":")[2]
            raise InputError(
                f"encoding {encoding}: {variable!r} {found} there; it must be a function, a module or a module class"
            )
        return OwnEncoding.of(resolved(encoding), scheme)
    if not callable(encoding):
        return encoding  # a setting of another kind, of a user's own model
    named = type(encoding) if isinstance(encoding, nn.Module) or not hasattr(encoding, "__qualname__") else encoding
    return OwnEncoding.of(f"{named.__module__}:{named.__qualname__}", encoding)


def with_own_encoding(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model with `find_encoding` of the setting `encoding`, if it is given."""
    return {name: find_encoding(value) if name == "encoding" else value for name, value in settings.items()}
