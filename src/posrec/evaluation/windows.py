"""Windows in time: the order of models on one test part may be another on the next.

The windows of a run are consecutive parts of its test part. Those of a comparison have a rolling
origin: in each, the models are trained on the sessions before it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
    train_sessions: int  # all that began before it
    sessions: int
    samples: int
    metrics: dict[str, Metrics]  # by model
    pairs: list[PairedTest]

    @classmethod
    def of(
        cls,
        data: PreparedDataset,
        metrics: dict[str, Metrics],
        pairs: list[PairedTest],
    ) -> "Window":
        test = data.test
        begins = begin_of(data, test)
        return cls(
            begins, data.train.sessions, test.sessions, len(test), metrics, pairs
        )


@dataclass(frozen=True)
class Lead:
    """How a model with the best mean stands against another one in each window."""

    best: str
    other: str
    metric: str
    differences: list[float]  # best minus other
    shown: list[bool]  # whether the paired test over the window's sessions shows it
    p: float  # of the sign test over windows, for this pair alone

    @classmethod
    def of(cls, tests: Sequence[PairedTest]) -> "Lead":
        """From the tests of the same two models in each window."""
        differences = [test.comparison.difference for test in tests]
        p = sign_test(sum(d > 0 for d in differences), sum(d < 0 for d in differences))
        shown = [test.is_shown for test in tests]
        first = tests[0]
        return cls(first.first, first.second, first.metric, differences, shown, p)

    @property
    def ahead(self) -> int:
        return sum(difference > 0 for difference in self.differences)

    @property
    def shown_ahead(self) -> int:
        pairs = zip(self.differences, self.shown, strict=True)
        return sum(difference > 0 and shown for difference, shown in pairs)


@dataclass(frozen=True)
class Windows:
    """The windows of a comparison, the earliest first; the last is the test part."""

    each: list[Window]
    mean: dict[str, Metrics]  # by model
    spread: dict[str, Metrics]  # the standard deviation between windows
    leads: list[Lead]

    @classmethod
    def of(cls, each: list[Window]) -> "Windows":
        by_model = {
            model: [window.metrics[model] for window in each]
            for model in each[0].metrics
        }
        means = {model: mean_metrics(rows) for model, rows in by_model.items()}
        spreads = {model: spread_of(rows) for model, rows in by_model.items()}
        leads = []
        for metric in dict.fromkeys(pair.metric for pair in each[0].pairs):
            best = max(means, key=lambda model: means[model][metric])
            tests = [tests_of(best, window.pairs, metric) for window in each]
            leads += [Lead.of(of_pair) for of_pair in zip(*tests, strict=True)]
        return cls(each, means, spreads, leads)

    def conclusion(self) -> str:
        """Which model has the best mean of each metric, and in how many windows it is ahead."""
        sentences = []
        for metric in dict.fromkeys(lead.metric for lead in self.leads):
            leads = [lead for lead in self.leads if lead.metric == metric]
            others = [f"of {lead.other} in {lead.ahead}" for lead in leads]
            sentences.append(
                f"By {metric}, {leads[0].best} has the best mean over {len(self.each)} windows; "
                f"it is ahead {', '.join(others)}."
            )
        return " ".join([*sentences, self.caution()])

    def caution(self) -> str:
        """What the sign test can't show."""
        lowest = sign_test(len(self.each), 0)
        text = f"With {len(self.each)} windows, p of the sign test is at least {lowest:.3g}"
        if lowest >= LEVEL:
            return f"{text}, so it can't show a difference; it takes 6 windows."
        return f"{text}."


def mean_metrics(rows: Sequence[Mapping[str, float]]) -> Metrics:
    return {name: mean(row[name] for row in rows) for name in rows[0]}


def spread_of(rows: Sequence[Mapping[str, float]]) -> Metrics:
    return {name: stdev(row[name] for row in rows) for name in rows[0]}


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
    """The metrics of each part of the test part, of which `ranks` [N] are the ranks; and their
    mean and spread."""
    sizes = [len(part) for part in parts]
    metrics = [rank_metrics(ranks_of_part) for ranks_of_part in torch.split(ranks, sizes)]
    each = [
        {
            "begins": begin_of(data, part),
            "sessions": part.sessions,
            "samples": len(part),
            **of_part,
        }
        for part, of_part in zip(parts, metrics, strict=True)
    ]
    return {"each": each, "mean": mean_metrics(metrics), "spread": spread_of(metrics)}


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
        training = plural(data.train.sessions, "training session")
        advice = (
            f"choose 2 to {most}" if most > 1 else "prepare it with a smaller test part"
        )
        raise InputError(
            f"{count} windows (--windows) of {plural(sessions, 'test session')} each don't fit: "
            f"{data.path} has {training}, and each window trains on as many or more; {advice}"
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
