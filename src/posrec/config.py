"""Settings: declared beside their defaults, checked, described, and parsed from key=value.

A config is a frozen dataclass. `setting` declares a field of it: the default, what it means, which
values are allowed and which `posrec tune` tries. A plain default has no range and no description.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, get_args, get_type_hints

from posrec.errors import InputError, did_you_mean

# What `posrec train` and `posrec.fit` train unless a model is named.
DEFAULT_MODEL = "posrec-plus"

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

T = TypeVar("T")

# What settings mean that several models have.
ENCODING = (
    "the [positional encoding](encodings.md): a name of `posrec encodings`, "
    "or [your own](own_encoding.md)"
)


@dataclass(frozen=True)
class Range:
    """Any number between `low` and `high`, drawn uniformly on a logarithmic scale.

    >>> 0.001 in Range(3e-4, 1e-2)
    True
    """

    low: float
    high: float

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)


Choices = tuple[Any, ...]
SearchSpace = Mapping[str, Range | Choices]


@dataclass(frozen=True)
class Declaration:
    """What `setting` declares of a field, beside its default."""

    # For `posrec models MODEL` and the page of settings: Markdown, with links to pages of docs/.
    meaning: str = ""
    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf
    between: tuple[float, float] = (-math.inf, math.inf)
    choices: Choices = ()  # the allowed values, if only these are
    tune: Range | Choices = ()  # what `posrec tune` tries

    @property
    def allowed(self) -> str:
        """The allowed values in words; empty if every value is allowed."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if math.isfinite(self.between[0]):
            return f"between {self.between[0]} and {self.between[1]}"
        bounds = []
        for name in ("at_least", "above", "at_most", "below"):
            bound = getattr(self, name)
            if math.isfinite(bound):
                bounds.append(f"{name.replace('_', ' ')} {bound}")
        return " and ".join(bounds)

    def allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if not self.allowed:
            return True
        if not isinstance(value, int | float):
            return False
        low = max(self.at_least, self.between[0])
        high = min(self.at_most, self.between[1])
        return low <= value <= high and self.above < value < self.below

    @property
    def description(self) -> str:
        """The meaning and the allowed values, in Markdown."""
        names = [f"`{choice}`" for choice in self.choices]
        allowed = f"one of {', '.join(names)}" if names else self.allowed
        is_explained = names and all(name in self.meaning for name in names)
        if is_explained or not allowed:
            return self.meaning
        return f"{self.meaning}; {allowed}"


def setting(default: T, meaning: str = "", **declared: Any) -> T:
    """A field of a config dataclass.

    Args:
        default: its default value.
        meaning: what it means.
        **declared: which values are allowed: `at_least`, `above`, `at_most`, `below` and
            `between=(low, high)` for numbers, or `choices`; and `tune`, the values that
            `posrec tune` tries: a tuple or a `posrec.Range`.

    >>> @dataclass(frozen=True)
    ... class MyConfig:
    ...     d: int = setting(100, "width of item vectors", at_least=1, tune=(50, 100, 200))
    >>> MyConfig().d
    100
    >>> check_settings(MyConfig(d=0))
    Traceback (most recent call last):
    posrec.errors.InputError: d must be at least 1, not 0
    """
    declaration = Declaration(meaning, **declared)
    return field(default=default, metadata={Declaration: declaration})


def declarations(config: Any) -> Iterator[tuple[str, Declaration]]:
    for declared in fields(config):
        yield declared.name, declared.metadata.get(Declaration, Declaration())


def check_settings(config: Any) -> None:
    """Raise an InputError that names the first setting with a wrong type or a value not allowed."""
    kinds = get_type_hints(type(config))
    for name, declaration in declarations(config):
        value = getattr(config, name)
        if not has_type(value, kinds[name]):
            raise InputError(f"{name} must be {in_words(kinds[name])}, not {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{name} must be a finite number, not {value}")
        if not declaration.allows(value):
            raise InputError(f"{name} must be {declaration.allowed}, not {value!r}")


YES = dict.fromkeys(("true", "yes", "1"), True)
BOOLEANS = YES | dict.fromkeys(("false", "no", "0"), False)
TYPES_IN_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "none",
}


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value is of a declared type, such as `int | None`; other types are left to the
    model.

    >>> has_type(2, float), has_type(2.5, int), has_type(True, int), has_type(None, int | None)
    (True, False, False, True)
    """
    kinds = get_args(kind) or (kind,)
    if not all(alternative in TYPES_IN_WORDS for alternative in kinds):
        return True
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int) and float in kinds:
        return True
    return isinstance(value, tuple(kinds))


def in_words(kind: Any) -> str:
    kinds = get_args(kind) or (kind,)
    return " or ".join(
        words for type_, words in TYPES_IN_WORDS.items() if type_ in kinds
    )


def described_settings(config: Any) -> list[tuple[str, Any, str]]:
    """The name, the value and the Markdown description of every setting."""
    return [
        (name, getattr(config, name), declared.description)
        for name, declared in declarations(config)
    ]


def tuned_settings(config: type) -> dict[str, Range | Choices]:
    """The settings that `posrec tune` searches, and the values that it tries."""
    tried = {name: declaration.tune for name, declaration in declarations(config)}
    return {name: values for name, values in tried.items() if values}


def parse_pairs(
    pairs: list[str] | None, example: str = "--set encoding=dpe"
) -> dict[str, Any]:
    """Split options such as `example` at their equals sign.

    >>> parse_pairs(["encoding=dpe"])
    {'encoding': 'dpe'}
    """
    settings = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            option = example.partition(" ")[0]
            raise InputError(f"{option} {pair}: write key=value, e.g. {example}")
        settings[key] = value
    return settings


def split_settings(settings: dict[str, str | Any], *defaults: Any) -> list[Any]:
    """Copies of the configs `defaults` with `settings` in them; the first that has a name gets it.

    >>> from posrec.training.settings import Settings
    >>> split_settings({"epochs": "2"}, Settings())[0].epochs
    2
    """
    names = {field.name for config in defaults for field in fields(config)}
    for key in settings:
        if key not in names:
            hint = did_you_mean(key, names)
            choices = ", ".join(sorted(names))
            raise InputError(
                f"there is no setting {key!r}{hint}; choose one of {choices}"
            )
    changed = []
    left = dict(settings)
    for config in defaults:
        kinds = get_type_hints(type(config))
        values = {}
        for name, _ in declarations(config):
            if name in left:
                values[name] = parse(name, left.pop(name), kinds[name])
        changed.append(replace(config, **values))
    return changed


def parse(key: str, value: Any, kind: Any) -> Any:
    """The text of a setting as a value of its type; other values are returned as they are."""
    if not isinstance(value, str):
        return value
    kinds = [kind, *get_args(kind)]
    try:
        if bool in kinds:
            return BOOLEANS[value.lower()]
        if type(None) in kinds and value.lower() == "none":
            return None
        if int in kinds:
            return int(value)
        return float(value) if float in kinds else value
    except (KeyError, ValueError):
        raise InputError(f"{key} must be {in_words(kind)}, not {value!r}") from None


def parse_duration(text: str, option: str = "--gap") -> int:
    """'30m' -> 1800000 milliseconds."""
    match = DURATION.fullmatch(text.strip())
    if not match or float(match[1]) <= 0:
        problem = f"{option} {text!r} is not a duration"
        raise InputError(f"{problem}; write e.g. 30m, 2h, 90s or 1d")
    return round(float(match[1]) * DURATION_UNITS[match[2]])
