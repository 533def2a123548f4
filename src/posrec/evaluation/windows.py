"""Windows in time: the order of models on one test part may be another on the next.

The windows of a run are consecutive parts of its test part. Those of a comparison have a rolling
origin: in each, the models are trained on the sessions before it.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.prepare.writer import first_of_validation
from posrec.errors import InputError, plural
from posrec.evaluation.metrics import rank_metrics
from posrec.evaluation.novelty import known_sessions
from posrec.evaluation.significance import LEVEL, PairedTest, sign_test, tests_of

Metrics = dict[str, float]


@dataclass(frozen=True)
class Window:
    """A comparison of models on one window."""

    begins: str | None  # as of `begin_of`
    train_sessions: int
    sessions: int
    samples: int
    metrics: dict[str, Metrics]  # by model
    pairs: list[PairedTest]


@dataclass(frozen=True)
class Lead:
    """How the model with the best mean of a metric stands against another one."""

    best: str
    other: str
    metric: str
    differences: list[float]  # in each window, best minus other
    shown: list[bool]  # whether the paired test over the window's sessions shows it
    ahead: int  # windows
    p: float  # of the sign test over windows, for this pair alone

    @classmethod
    def of(cls, tests: Sequence[PairedTest]) -> "Lead":
        """From the tests of the same two models in each window."""
        differences = [test.comparison.difference for test in tests]
        shown = [test.is_shown for test in tests]
        ahead = sum(difference > 0 for difference in differences)
        p = sign_test(ahead, sum(difference < 0 for difference in differences))
        pair = tests[0]
        return cls(pair.first, pair.second, pair.metric, differences, shown, ahead, p)


@dataclass(frozen=True)
class Windows:
    """The windows of a comparison, the earliest first; the last is the test part."""

    each: list[Window]
    mean: dict[str, Metrics]  # by model
    spread: dict[str, Metrics]  # the standard deviation between windows
    leads: list[Lead]

    @classmethod
    def of(cls, each: list[Window]) -> "Windows":
        means = {}
        spreads = {}
        for model in each[0].metrics:
            rows = [window.metrics[model] for window in each]
            means[model] = over(rows, mean)
            spreads[model] = over(rows, stdev)
        leads = []
        for metric in dict.fromkeys(pair.metric for pair in each[0].pairs):
            best = max(means, key=lambda model: means[model][metric])
            tests = [tests_of(best, window.pairs, metric) for window in each]
            leads += [Lead.of(of_pair) for of_pair in zip(*tests, strict=True)]
        return cls(each, means, spreads, leads)

    def conclusion(self) -> str:
        """Which models lead, and what the sign test can't show."""
        count = len(self.each)
        sentences = []
        for (metric, best), leads in groupby(self.leads, lambda x: (x.metric, x.best)):
            others = ", ".join(f"of {lead.other} in {lead.ahead}" for lead in leads)
            sentences.append(
                f"By {metric}, {best} has the best mean over {count} windows; it is ahead {others}."
            )
        lowest = sign_test(count, 0)
        limit = f"With {count} windows, p of the sign test is at least {lowest:.3g}"
        if lowest >= LEVEL:
            limit += ", so it can't show a difference; it takes 6 windows"
        return " ".join([*sentences, f"{limit}."])


def over(
    rows: Sequence[Metrics], statistic: Callable[[Iterable[float]], float]
) -> Metrics:
    return {name: statistic(row[name] for row in rows) for name in rows[0]}


def parts_of_test(data: PreparedDataset, count: int) -> list[SessionDataset]:
    """`count` consecutive parts of the test part, with equal numbers of sessions."""
    data.require_test_part()
    test = data.test
    bounds = [number * test.sessions // count for number in range(count + 1)]
    parts = [test.part(begin, end) for begin, end in pairwise(bounds)]
    require_samples(parts, data)
    return parts


def metrics_by_part(
    ranks: Tensor, parts: Sequence[SessionDataset], data: PreparedDataset
) -> dict[str, Any]:
    """The metrics of the parts of a test part, whose ranks are `ranks` [N]; mean and spread."""
    sizes = [len(part) for part in parts]
    metrics = [rank_metrics(of_part) for of_part in torch.split(ranks, sizes)]
    each = []
    for part, size, of_part in zip(parts, sizes, metrics, strict=True):
        counts = {"sessions": part.sessions, "samples": size}
        each.append({"begins": begin_of(data, part), **counts, **of_part})
    return {"each": each, "mean": over(metrics, mean), "spread": over(metrics, stdev)}


def require_samples(windows: Sequence[SessionDataset], data: PreparedDataset) -> None:
    for number, window in enumerate(windows, start=1):
        if not len(window):
            raise InputError(
                f"window {number} of {len(windows)} (--windows) has no samples; choose fewer, as "
                f"{data.path} has {plural(data.test.sessions, 'test session')}"
            )


def begin_of(data: PreparedDataset, sessions: SessionDataset) -> str | None:
    """When the first of these sessions began (UTC); None if the log has no times."""
    if data.trained_until is None:
        return None
    first = sessions.times[:1].numpy().astype("datetime64[ms]")[0]
    return str(first.astype("datetime64[m]"))


def rolling_windows(data: PreparedDataset, count: int) -> list[PreparedDataset]:
    """The windows of a rolling origin, the earliest first; the last is the dataset itself.

    The others test on as many of the latest training sessions as the test part has sessions, and
    train on those before.
    """
    sessions = data.test.sessions
    most = data.train.sessions // sessions
    if not 2 <= count <= most:
        advice = f"choose 2 to {most}" if most > 1 else "prepare a smaller test part"
        raise InputError(
            f"{count} windows (--windows) don't fit: {data.path} has {data.train.sessions:,} "
            f"training and {sessions:,} test sessions, and each window tests on as many as these "
            f"and trains on as many or more; {advice}"
        )
    ends = [data.train.sessions - back * sessions for back in range(count)][::-1]
    windows = [*(before(data, begin, end) for begin, end in pairwise(ends)), data]
    require_samples([window.test for window in windows], data)
    return windows


def before(data: PreparedDataset, begin: int, end: int) -> PreparedDataset:
    """The dataset as it was before its training session `begin`, tested on those up to `end`.

    Clicks on items that no session before has are left out of the usual test part.
    """
    train = data.train.cut(0, begin)
    full_test = data.train.cut(begin, end)
    # Items have numbers in the order of their first clicks in training.
    items = int(train.items.max())
    numbers = torch.arange(len(data.vocabulary) + 1, dtype=train.items.dtype)
    numbers[items + 1 :] = 0
    _, target = full_test.locate(torch.arange(len(full_test)))
    test, _ = known_sessions(full_test, target, numbers)
    content = f"{data.fingerprint} {begin} {end}".encode()
    manifest = {
        **data.manifest,
        "validation_start": first_of_validation(begin),
        "counts": {**data.manifest["counts"], "train_items": items},
        "fingerprint": hashlib.blake2b(content, digest_size=16).hexdigest(),
    }
    weights = data.target_weights
    return replace(
        data,
        train=train,
        test=test,
        full_test=full_test,
        manifest=manifest,
        target_weights=None if weights is None else weights[: train.clicks],
    )
