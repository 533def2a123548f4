"""What `posrec prepare` says about a log or a dataset that is unlikely to be what was wanted."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from posrec.data.prepare.options import RecipeOptions
from posrec.data.prepare.parts import ClickParts
from posrec.data.prepare.steps import DAY, session_durations

FEW_SAMPLES = 1000  # to train on
FEW_TEST_SAMPLES = 100
LASTING_SHARE = 0.01  # of the sessions, that may last for days before a warning is printed


def notices(folder: Path, manifest: dict[str, Any], options: RecipeOptions) -> Iterator[str]:
    counts = manifest["counts"]
    if future := future_sessions(folder):
        yield (
            f"warning: {future:,} of {counts['train_sessions'] + counts['test_sessions']:,} sessions begin more than "
            "a day from now. The last days of a log are counted back from its latest session, so the test part may "
            "hold these alone; remove them from the log, or check the time column and --time-unit"
        )
    if counts["train_samples"] < FEW_SAMPLES:
        yield few_samples(manifest, options)
    elif 0 < counts["test_samples"] < FEW_TEST_SAMPLES:
        yield (
            f"only {counts['test_samples']:,} test samples: too few to compare models by; raise --test-days or "
            "--test-share, or use a longer log"
        )


def few_samples(manifest: dict[str, Any], options: RecipeOptions) -> str:
    """What to say about a small dataset: how small it is, and what to change."""
    removed = max(manifest["steps"], key=lambda step: int(step["removed_clicks"]))
    samples = manifest["counts"]["train_samples"]
    advice = "use a longer log"
    if manifest["log"]["target_events"]:
        advice += ", name more kinds with --target-events"
    if removed["removed_clicks"]:
        advice += (
            f", or lower --min-support (now {options.min_support}) or --min-length (now {options.min_length}): the "
            f"step '{removed['step']}' removed {removed['removed_clicks']:,} clicks"
        )
    count = "1 training sample is" if samples == 1 else f"{samples:,} training samples are"
    return f"only {count} left, and most models need at least {FEW_SAMPLES:,}; {advice}"


def future_sessions(folder: Path) -> int:
    """How many sessions begin more than a day from now: clocks and time zones differ by less."""
    limit = int(time.time() * 1000) + DAY
    times = (np.load(folder / f"{part}_times.npy", mmap_mode="r") for part in ("train", "test"))
    return sum(int(np.count_nonzero(part > limit)) for part in times)


def lasting_sessions(clicks: ClickParts, columns: Sequence[str]) -> str | None:
    """A warning, if many sessions last for days: the session's `columns`, if they were named, then often hold users."""
    counts = np.array(clicks.collect(count_lasting, "Measuring sessions"))  # [parts, 3]
    lasting, sessions, longest = int(counts[:, 0].sum()), int(counts[:, 1].sum()), int(counts[:, 2].max())
    if lasting <= LASTING_SHARE * sessions:
        return None
    advice = "pass --gap 30m to split them after half an hour of inactivity"
    if len(columns) == 1:
        user = f"pass --user-column {columns[0]} instead of --session-column"
        advice = f"if {columns[0]!r} holds users, {user}; or {advice}"
    return (
        f"warning: {lasting:,} of {sessions:,} sessions last longer than a day, the longest "
        f"{longest / DAY:,.0f} days; {advice}"
    )


def count_lasting(clicks: pl.DataFrame) -> tuple[int, int, int]:
    """The sessions that last longer than a day, all sessions, and the longest duration."""
    durations = session_durations(clicks)
    return int((durations > DAY).sum()), len(durations), int(durations.max(initial=0))
