"""LogOptions: what the user says about a log; every option can be left out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posrec.config import declarations, setting
from posrec.errors import InputError

MAX_WEIGHT = 1000
EVENTS = ("events", "event_weights", "target_events")
LINES = ("bad_lines", "bad_lines_limit", "normalize_ids")
CLICKS = (*LINES, "drop_duplicates", "since", "until")  # lines with a time
ROLES = ("session", "user", "item", "time", "event")
ANY_LOG = (
    *(f"{role}_column" for role in ROLES),
    *EVENTS,
    "time_unit",
    "time_format",
    *CLICKS,
)
ANY_FILE = (*ANY_LOG, "columns")


@dataclass(frozen=True)
class LogOptions:
    session_column: str | Sequence[str] = ()  # several columns are a composite key
    user_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    event_column: str | None = None
    events: Sequence[str] = ()  # the kinds of events to read; all if it is empty
    event_weights: Mapping[str, float] = field(default_factory=dict)
    target_events: Sequence[str] = ()
    delimiter: str | None = None  # of csv; by default it is concluded, or a comma
    time_unit: str | None = None
    time_format: str | None = None
    bad_lines: str = setting("stop", choices=("stop", "skip"))
    bad_lines_limit: float = setting(0.01, between=(0, 1))
    drop_duplicates: bool = False  # the kinds of events must then be kept
    normalize_ids: bool = False  # join ids that differ in spaces or Unicode form alone
    since: int | None = None  # milliseconds; earlier clicks are dropped
    until: int | None = None  # from here on, clicks are dropped
    columns: Any = field(default_factory=dict)  # a mapping file, or its tables
    mixed: bool = False  # other files of the log are read in another way

    def named_columns(self) -> dict[str, tuple[str, ...]]:
        return {role: as_tuple(getattr(self, f"{role}_column")) for role in ROLES}

    @property
    def needs_events(self) -> bool:
        """Otherwise the column of events is only read if there is one."""
        return bool(self.events or self.event_weights or self.target_events)

    def check(self, format: str, names: Sequence[str]) -> None:
        default = LogOptions()
        for name, declaration in declarations(self):
            value = getattr(self, name)
            if value != getattr(default, name) and name not in names:
                raise InputError(
                    f"{option_name(name)} can't be used with --format {format}, "
                    "whose layout is fixed"
                )
            if not declaration.allows(value):
                raise InputError(
                    f"{option_name(name)} must be {declaration.allowed}, not {value!r}"
                )
        if self.time_unit is not None and self.time_format is not None:
            raise InputError(
                "--time-unit is for times that are numbers and --time-format for text; "
                "pass one of them"
            )
        delimiter = self.delimiter
        if delimiter is not None and not re.fullmatch(r'[^"\r\n]', delimiter, re.ASCII):
            raise InputError(
                f"--delimiter {delimiter!r} can't be used; give one character, e.g. ';' or '\\t'"
            )
        if self.since and self.until and self.since >= self.until:
            raise InputError("--since must be earlier than --until")
        self.check_events()

    def check_events(self) -> None:
        for kind, weight in self.event_weights.items():
            if not 0 < weight <= MAX_WEIGHT:
                raise InputError(
                    f"--event-weights: the weight of {kind!r} must be more than 0 and at most "
                    f"{MAX_WEIGHT:,}, not {weight:g}; to predict some kinds only, use "
                    "--target-events"
                )
        for name in ("event_weights", "target_events"):
            for kind in getattr(self, name):
                if self.events and kind not in self.events:
                    raise InputError(
                        f"{option_name(name)} names {kind!r}, which --events does not read; "
                        "add it to --events"
                    )


def option_name(name: str) -> str:
    """`bad_lines` -> `--bad-lines`."""
    return f"--{name.replace('_', '-')}"


def as_tuple(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def split_commas(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_weights(text: str) -> dict[str, float]:
    """'view=1,cart=3' -> {'view': 1.0, 'cart': 3.0}."""
    weights: dict[str, float] = {}
    for pair in split_commas(text):
        kind, _, weight = map(str.strip, pair.rpartition("="))
        try:
            weights[kind] = float(weight)
        except ValueError:
            kind = ""
        if not kind:
            raise InputError(
                f"--event-weights {pair!r} is not kind=weight; write e.g. view=1,cart=3,purchase=5"
            )
    return weights
