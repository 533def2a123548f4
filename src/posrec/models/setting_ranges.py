"""The ranges of models' settings: what a model requires of its config, and what all of them do."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

AT_LEAST_0, AT_LEAST_1, ABOVE_0 = "at least 0", "at least 1", "above 0"
SHARE, FACTOR = "between 0 and 1", "above 0 and at most 1"
# A comparison with a value that is not a number is false, so it is outside every range.
RANGES: dict[str, Callable[[float], bool]] = {
    AT_LEAST_0: lambda value: value >= 0,
    AT_LEAST_1: lambda value: value >= 1,
    ABOVE_0: lambda value: value > 0,
    SHARE: lambda value: 0 <= value <= 1,
    FACTOR: lambda value: 0 < value <= 1,
}


def require(config: Any, allowed: str, *names: str) -> None:
    """Raise a ValueError that names the first of these settings that is outside the range.

    >>> from posrec.models.bprmf import BPRMFConfig
    >>> require(BPRMFConfig(d=0), AT_LEAST_1, "d")
    Traceback (most recent call last):
    ValueError: d must be at least 1, not 0
    """
    for name in names:
        value = getattr(config, name)
        if not RANGES[allowed](value):
            raise ValueError(f"{name} must be {allowed}, not {value}")


def require_of_all(config: Any) -> None:
    """What is required of every model's settings: clicks to read, and numbers that are finite."""
    if not hasattr(config, "max_length"):
        raise ValueError(f"{type(config).__name__} must have a field max_length: how many clicks the model reads")
    require(config, AT_LEAST_1, "max_length")
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} must be a finite number, not {value}")
