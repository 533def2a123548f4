"""LogOptions: what the user says about a log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posrec import config
from posrec.errors import InputError

BAD_LINES = ("stop", "skip")
MAX_WEIGHT = 1000
EVENTS = ("events", "event_weights", "target_events")
LINES = ("bad_lines", "bad_lines_limit")
COLUMNS = ("session_column", "user_column", "item_column", "time_column", "event_column")
ANY_LOG = (*COLUMNS, *EVENTS, "time_unit", "time_format", *LINES)


@dataclass(frozen=True)
class LogOptions:
    """What the user says about a log; every field can be left out."""

    session_column: Sequence[str] = ()  # several columns together are a composite key
    user_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    event_column: str | None = None
    events: Sequence[str] = ()  # the kinds of events to read; all of them if it is empty
    event_weights: Mapping[str, float] = field(default_factory=dict)
    target_events: Sequence[str] = ()
    delimiter: str = ","
    time_unit: str | None = None
    time_format: str | None = None
    bad_lines: str = "stop"
    bad_lines_limit: float = 0.01

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "LogOptions":
        """Options by name. Lists may be text separated by commas, weights text such as `view=1,cart=3`, and numbers
        text."""
        parsed = dict(options)
        if "bad_lines_limit" in parsed:
            parsed["bad_lines_limit"] = config.parse("bad_lines_limit", parsed["bad_lines_limit"], float)
        for name in ("events", "target_events"):
            if isinstance(parsed.get(name), str):
                parsed[name] = split_commas(parsed[name])
        if isinstance(parsed.get("event_weights"), str):
            parsed["event_weights"] = parse_weights(parsed["event_weights"])
        if isinstance(parsed.get("session_column"), str):
            parsed["session_column"] = (parsed["session_column"],)
        return cls(**parsed)

    @property
    def needs_events(self) -> bool:
        """Whether the column of event kinds is needed, rather than only read where there is one."""
        return bool(self.events or self.event_weights or self.target_events)

    def check(self, format: str, names: Sequence[str]) -> None:
        """Refuse options but those `names` that the format takes, and values outside the allowed range."""
        default = LogOptions()
        for name, value in vars(self).items():
            if value != getattr(default, name) and name not in names:
                raise InputError(
                    f"--{name.replace('_', '-')} can't be used with --format {format}, whose layout is fixed"
                )
        if self.user_column is not None and self.session_column:
            raise InputError(
                "--user-column and --session-column can't be used together; for a session that is identified by two "
                "columns, pass --session-column twice"
            )
        if self.time_unit is not None and self.time_format is not None:
            raise InputError("--time-unit is for times that are numbers and --time-format for text; pass one of them")
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise InputError(f"--delimiter {self.delimiter!r} can't be used; give one character, e.g. ';' or '\\t'")
        if self.bad_lines not in BAD_LINES:
            raise InputError(f"--bad-lines must be one of {', '.join(BAD_LINES)}, not {self.bad_lines!r}")
        if not 0 <= self.bad_lines_limit <= 1:
            raise InputError(f"--bad-lines-limit must be between 0 and 1, not {self.bad_lines_limit}")
        self.check_events()

    def check_events(self) -> None:
        for kind, weight in self.event_weights.items():
            if not 0 < weight <= MAX_WEIGHT:
                raise InputError(
                    f"--event-weights: the weight of {kind!r} must be more than 0 and at most {MAX_WEIGHT:,}, not "
                    f"{weight:g}; to predict some kinds only, use --target-events"
                )
        for option, kinds in (("--event-weights", self.event_weights), ("--target-events", self.target_events)):
            for kind in kinds:
                if self.events and kind not in self.events:
                    raise InputError(f"{option} names {kind!r}, which --events does not read; add it to --events")


def split_commas(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_weights(text: str) -> dict[str, float]:
    """'view=1,cart=3' -> {'view': 1.0, 'cart': 3.0}."""
    weights: dict[str, float] = {}
    for pair in split_commas(text):
        kind, sign, weight = pair.rpartition("=")
        try:
            weights[kind.strip()] = float(weight)
        except ValueError:
            sign = ""
        if not sign or not kind.strip():
            raise InputError(f"--event-weights {pair!r} is not kind=weight; write e.g. view=1,cart=3,purchase=5")
    return weights
