"""The settings of a model and of training, with their defaults and meanings: for `posrec models` and for the page of
settings, which is generated."""

import inspect
import re
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from typing import Any

from posrec.cli.setting_meanings import MEANINGS
from posrec.models.registry import ModelSpec
from posrec.training.settings import CHOICES, RANGES, Settings

TRAINING = "training"


@dataclass(frozen=True)
class SettingInfo:
    key: str
    default: Any
    meaning: str  # Markdown


def settings_of(name: str, config: type) -> list[SettingInfo]:
    """The settings of the model `name`, whose fields are those of `config`."""
    comments = field_comments(config)
    found = []
    for field in fields(config):
        default = field.default if field.default is not MISSING else ""
        meaning = MEANINGS.get(f"{name}.{field.name}") or comments.get(field.name) or MEANINGS.get(field.name, "")
        found.append(SettingInfo(field.name, default, meaning + allowed(name, field.name, meaning)))
    return found


def training_settings(spec: ModelSpec) -> list[SettingInfo]:
    """The settings of training, with the defaults of a model; none if it is not trained."""
    if not spec.is_trained:
        return []
    return [
        SettingInfo(one.key, spec.settings.get(one.key, one.default), one.meaning)
        for one in settings_of(TRAINING, Settings)
    ]


def allowed(name: str, setting: str, meaning: str) -> str:
    """The range or the choices of a setting of training, unless its meaning names them."""
    if name != TRAINING:
        return ""
    if setting in RANGES:
        return f"; {RANGES[setting][0]}"
    choices = [f"`{choice}`" for choice in CHOICES.get(setting, ())]
    return "" if all(choice in meaning for choice in choices) else f"; one of {', '.join(choices)}"


def field_comments(config: type) -> dict[str, str]:
    """The comment behind each field of a dataclass, with those of the classes it inherits from."""
    found: dict[str, str] = {}
    for parent in reversed(config.__mro__[:-1]):
        pattern = re.compile(r"^    (\w+): [^#\n]*#\s*(.*)$", re.MULTILINE)
        with suppress(OSError):  # a class without a source file
            found.update(pattern.findall(inspect.getsource(parent)))
    return found


def without_markdown(text: str) -> str:
    """For a terminal: no backquotes, and links as their text, or left out if they are in parentheses.

    >>> without_markdown("see [the page](terms.md) of `posrec models` ([more](models.md))")
    'see the page of posrec models'
    """
    text = re.sub(r" ?\(\[[^\]]*\]\([^)]*\)\)", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
