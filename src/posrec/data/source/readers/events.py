"""Kinds of events (view, cart, purchase): which are read, their weights, and the targets."""

from collections import Counter

import polars as pl

from posrec.data.source.readers.options import LogOptions
from posrec.errors import InputError
from posrec.progress import Progress

HASH_SEED = 0  # every task must give a kind the same number
MAX_KINDS = 1000  # a column with more different values does not hold kinds of events


class EventKinds:
    """Counts the kinds of events, selects those to read, and gives their clicks weights.

    `default` is what a format reads unless the user asks for others.
    """

    def __init__(self, options: LogOptions, default: tuple[str, ...] = ()) -> None:
        named = [*options.event_weights, *options.target_events]
        self.asked = list(options.events)
        self.read = self.asked or (
            list(dict.fromkeys([*default, *named])) if default else []
        )  # empty: all
        self.weights = dict(options.event_weights)
        self.targets = list(options.target_events)
        self.tell_duplicates = options.drop_duplicates
        self.column: str | None = None
        self.counts: Counter[str] = Counter()

    @property
    def listed(self) -> bool:
        """Whether the column has so few values that they may be kinds of events."""
        return len(self.counts) <= MAX_KINDS

    def count(self, events: pl.Series) -> None:
        if self.listed:
            self.counts.update(dict(events.drop_nulls().value_counts().iter_rows()))

    def merge(self, other: "EventKinds") -> None:
        """Add the counts of another part of the log."""
        self.column = other.column
        self.counts.update(other.counts)

    def click_columns(self) -> list[pl.Expr]:
        """`weight` if weights were given, `target` if only some kinds are targets, and `kind`, a
        number, if duplicates are to be told."""
        event = pl.col("event").cast(pl.String)
        columns = []
        if self.weights:
            weight = event.replace_strict(
                self.weights, default=1.0, return_dtype=pl.Float32
            )
            columns.append(weight.alias("weight"))
        if self.targets:
            columns.append(event.is_in(self.targets).fill_null(False).alias("target"))
        if self.tell_duplicates:
            columns.append(
                (event.hash(HASH_SEED) % 2**32).cast(pl.UInt32).alias("kind")
            )
        return columns

    def ordered(self) -> dict[str, int]:
        """The kinds with their counts, the most frequent first."""
        return dict(sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def described(self) -> str:
        """'view 1,234, cart 55'."""
        shown = [
            f"{kind or 'empty'} {count:,}"
            for kind, count in list(self.ordered().items())[:20]
        ]
        return ", ".join(shown) + (", ..." if len(self.counts) > 20 else "")

    def report_so_far(self, progress: Progress) -> None:
        """When reading ends early: the kinds seen, unless the user has chosen already."""
        if self.column is not None and self.listed and self.counts and not self.asked:
            column = f"column {self.column!r}"
            progress.message(
                f"events in {column} so far: {self.described()} (choose with --events)"
            )

    def report(self, rows: int, clicks: int, progress: Progress) -> None:
        """Say which kinds the log has and which were read. A kind that was named and is missing
        gets a warning; if nothing was read, that is an error."""
        if self.column is None or not rows:
            return
        column = f"column {self.column!r}"
        if not clicks:
            raise InputError(
                f"none of {rows:,} rows is of the events {', '.join(self.read)}; {column} has {self.described()}: name "
                "some of these with --events"
            )
        asked = {
            "--events": self.asked,
            "--event-weights": self.weights,
            "--target-events": self.targets,
        }
        for option, kinds in asked.items():
            if missing := [
                kind for kind in kinds if self.listed and kind not in self.counts
            ]:
                names = ", ".join(map(repr, missing))
                progress.message(
                    f"warning: {option} names {names}, which {column} does not have; it has {self.described()}"
                )
        if not self.listed:
            progress.message(
                f"{column} has more than {MAX_KINDS:,} different values, too many to be kinds of events"
            )
        if self.asked:
            progress.message(
                f"kept {clicks:,} of {rows:,} rows: events {', '.join(self.asked)}"
            )
        elif self.listed:
            which = f"{', '.join(self.read)} read" if self.read else "all are read"
            progress.message(
                f"events in {column}: {self.described()}; {which} (choose with --events)"
            )
