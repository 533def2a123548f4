"""Kinds of events (view, cart, purchase): which are read, their weights, and the targets."""

from collections import Counter
from collections.abc import Sequence

import polars as pl

from posrec.data.source.readers.options import EVENTS, LogOptions, option_name
from posrec.errors import InputError
from posrec.progress import Progress

HASH_SEED = 0  # every task must give a kind the same number
MAX_KINDS = 1000  # a column with more different values does not hold kinds of events


class EventKinds:
    """Counts the kinds of events; `read` are those to read, `default` unless the user chooses."""

    def __init__(self, options: LogOptions, default: Sequence[str] = ()) -> None:
        self.options = options
        self.read = list(options.events)  # all kinds if it is empty
        if default and not self.read:
            named = [*options.event_weights, *options.target_events]
            self.read = list(dict.fromkeys([*default, *named]))
        self.column: str | None = None
        self.counts: Counter[str] = Counter()

    @property
    def listed(self) -> bool:
        return len(self.counts) <= MAX_KINDS

    def count(self, events: pl.Series) -> None:
        if self.listed:
            self.counts.update(dict(events.drop_nulls().value_counts().iter_rows()))

    def merge(self, other: "EventKinds") -> None:
        self.column = self.column or other.column
        self.counts.update(other.counts)

    def click_columns(self) -> list[pl.Expr]:
        """`weight`, `target`, and a number for the `kind`, where options need them."""
        event = pl.col("event").cast(pl.String)
        columns = []
        if weights := self.options.event_weights:
            weight = event.replace_strict(weights, default=1.0, return_dtype=pl.Float32)
            columns.append(weight.alias("weight"))
        if self.options.target_events:
            target = event.is_in(self.options.target_events).fill_null(False)
            columns.append(target.alias("target"))
        if self.options.drop_duplicates:
            kind = (event.hash(HASH_SEED) % 2**32).cast(pl.UInt32)
            columns.append(kind.alias("kind"))
        return columns

    def ordered(self) -> dict[str, int]:
        return dict(sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def described(self) -> str:
        """'view 1,234, cart 55'."""
        kinds = [
            f"{kind or 'empty'} {count:,}" for kind, count in self.ordered().items()
        ]
        if len(kinds) > 20:
            kinds[20:] = ["..."]
        return ", ".join(kinds)

    def report_so_far(self, progress: Progress) -> None:
        """For a reading that ends early, unless the user has chosen already."""
        if self.column is None or not self.counts or not self.listed:
            return
        if not self.options.events:
            seen = f"events in column {self.column!r} so far: {self.described()}"
            progress.message(f"{seen} (choose with --events)")

    def report(self, rows: int, clicks: int, progress: Progress) -> None:
        """Report which kinds the log has and which were read; raise if none was."""
        if self.column is None or not rows:
            return
        column = f"column {self.column!r}"
        read = ", ".join(self.read)
        if not clicks:
            raise InputError(
                f"none of {rows:,} rows is of the events {read}; {column} has "
                f"{self.described()}: name some of these with --events"
            )
        if self.listed:
            self.warn_of_missing(column, progress)
        else:
            progress.message(
                f"{column} has more than {MAX_KINDS:,} different values, "
                "too many to be kinds of events"
            )
        if self.options.events:
            progress.message(f"kept {clicks:,} of {rows:,} rows: events {read}")
        elif self.listed:
            choice = f"{read} read" if read else "all are read"
            progress.message(
                f"events in {column}: {self.described()}; {choice} (choose with --events)"
            )

    def warn_of_missing(self, column: str, progress: Progress) -> None:
        for option in EVENTS:
            named = getattr(self.options, option)
            missing = [repr(kind) for kind in named if kind not in self.counts]
            if missing:
                progress.message(
                    f"warning: {option_name(option)} names {', '.join(missing)}, which {column} "
                    f"does not have; it has {self.described()}"
                )
