"""Settings given as key=value: parsed, and put into the dataclasses that hold them."""

from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from posrec.errors import InputError, did_you_mean

DEFAULT_MODEL = "posrec-plus"  # what `posrec train` and `posrec.fit` train unless a model is named


def parse_pairs(pairs: list[str]) -> dict[str, Any]:
    """Split `--set` options at their equals sign.

    >>> parse_pairs(["encoding=dpe"])
    {'encoding': 'dpe'}
    """
    for pair in pairs:
        if pair.partition("=")[0] in ("", pair):
            raise InputError(f"--set {pair}: write key=value, e.g. --set encoding=dpe")
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}


def split_settings(settings: dict[str, str | Any], *defaults: Any) -> list[Any]:
    """Copies of the configs `defaults` with `settings` in them; a setting goes to every config that has its name.

    >>> from posrec.training.settings import Settings
    >>> split_settings({"epochs": "2"}, Settings())[0].epochs
    2
    """
    known = {field.name for config in defaults for field in fields(config)}
    for key in settings:
        if key not in known:
            meant = did_you_mean(key, known)
            raise InputError(f"there is no setting {key!r}{meant}; choose one of {', '.join(sorted(known))}")
    return [
        replace(config, **{
            field.name: parse(field.name, settings[field.name], get_type_hints(type(config))[field.name])
            for field in fields(config)
            if field.name in settings
        })
        for config in defaults
    ]  # fmt: skip


def parse(key: str, value: Any, kind: Any) -> Any:
    """The text of a setting as a value of its type; a value that is not text is returned as it is."""
    if not isinstance(value, str):
        return value
    kinds = [kind, *get_args(kind)]
    try:
        if bool in kinds:
            return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}[value.lower()]
        if type(None) in kinds and value.lower() == "none":
            return None
        return int(value) if int in kinds else float(value) if float in kinds else value
    except (KeyError, ValueError):
        allowed = "true or false" if bool in kinds else "a whole number" if int in kinds else "a number"
        raise InputError(f"{key} must be {allowed}, not {value!r}") from None
