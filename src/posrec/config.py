"""Settings as key=value pairs: parsed, checked and laid over the dataclasses that hold them."""

from dataclasses import fields, replace
from typing import Any, get_args

from posrec.errors import InputError


def parse_pairs(pairs: list[str]) -> dict[str, Any]:
    """["encoding=dpe"] -> {"encoding": "dpe"}."""
    for pair in pairs:
        if pair.partition("=")[0] in ("", pair):
            raise InputError(f"--set {pair}: write key=value, e.g. --set encoding=dpe")
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}


def split_settings(wanted: dict[str, str | Any], *defaults: Any) -> list[Any]:
    """Lay `key=value` over several configs; each key goes to every config that has it, and must fit its type.

    >>> from posrec.training.settings import Settings
    >>> split_settings({"epochs": "2"}, Settings())[0].epochs
    2
    """
    known = {field.name for config in defaults for field in fields(config)}
    for key in wanted:
        if key not in known:
            raise InputError(f"there is no setting {key!r}; there are {', '.join(sorted(known))}")
    return [
        replace(config, **{
            field.name: parse(field.name, wanted[field.name], field.type)
            for field in fields(config)
            if field.name in wanted
        })
        for config in defaults
    ]  # fmt: skip


def parse(key: str, value: Any, kind: Any) -> Any:
    """A setting's text as its type; a value that is no text is taken as it is."""
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
        wanted = "true or false" if bool in kinds else "a whole number" if int in kinds else "a number"
        raise InputError(f"{key}={value} does not fit: it must be {wanted}") from None
