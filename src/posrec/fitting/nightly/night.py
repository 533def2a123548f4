"""One night: prepare the log, train without its latest day, judge on that day, train on it too.

judged/NIGHT is the model that was trained without the latest day; the next night's starts from it.
runs/NIGHT continues it on all sessions, and is what is served, by the link `current`. Whatever
happens, that link is the last to change.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.pipeline import prepare
from posrec.errors import InputError, NothingToRead
from posrec.evaluation.metrics import CUTOFFS, GAINS
from posrec.fitting.fit import write_run
from posrec.fitting.job import FitOptions
from posrec.fitting.nightly.gate import ALL, Gate
from posrec.fitting.nightly.history import (
    FAILED,
    HELD,
    NOTHING_NEW,
    PROMOTED,
    Record,
    add_night,
    promoted_nights,
)
from posrec.fitting.nightly.home import (
    DATA,
    JUDGED,
    RUNS,
    SERVED,
    remove_night,
    remove_old,
    switch,
)
from posrec.fitting.nightly.judging import (
    begun_after,
    compared,
    describe_latest,
    moment,
)
from posrec.fitting.warm_start import open_start
from posrec.io.unfinished import one_writer, scratch_folder
from posrec.models.base import SessionModel
from posrec.models.own_code import is_own
from posrec.models.registry import MODELS, model_name, with_own_encoding
from posrec.progress import Progress
from posrec.recommend.recommender import Recommender
from posrec.recommend.try_out import try_out
from posrec.runs.folder import Run, read_config

# Options of preparing that a night chooses itself.
CHOSEN = ("items", "test", "test_days", "test_share", "no_test", "out", "overwrite")


@dataclass(frozen=True)
class NightOptions:
    """How nights are prepared, trained and judged; `posrec nightly --help` explains each."""

    log: str
    home: Path
    items: str | None = None
    prepare: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False
    device: str = "auto"
    export: bool = True
    test_days: float = 1.0
    keep: int = 7
    force: bool = False
    gate: Gate = field(default_factory=Gate)
    progress: Progress = field(default_factory=Progress)

    def check(self) -> None:
        metrics = [f"{name}@{cutoff}" for name in GAINS for cutoff in CUTOFFS]
        metric = self.gate.metric
        if metric not in metrics:
            raise InputError(f"--metric {metric} is not one of {', '.join(metrics)}")
        for name in CHOSEN:
            if name in self.prepare:
                raise InputError(
                    f"--prepare {name} is chosen by the night itself; leave it out"
                )


class Stopped(Exception):
    """The night ends without a new model."""

    def __init__(self, outcome: str, *reasons: str) -> None:
        super().__init__(*reasons)
        self.outcome = outcome


def run_night(options: NightOptions) -> Record:
    """One night; returns its line in nights.jsonl."""
    options.check()
    home = options.home
    with one_writer(home):
        name = time.strftime("%Y%m%dT%H%M%S")
        while (home / DATA / name).exists():
            name += "-again"
        night = Night(options, name)
        try:
            night.run()
        except Stopped as stopped:
            night.end(stopped.outcome, *stopped.args)
        except Exception as error:
            # A night that fails in any way must leave the running model in place.
            night.end(FAILED, str(error) or type(error).__name__)
        add_night(home, night.record)
        if night.record["outcome"] == NOTHING_NEW:
            remove_night(home, name)
        remove_old(home, options.keep)
    return night.record


class Night:
    """The steps of a night, and the record of what each has found."""

    def __init__(self, options: NightOptions, name: str) -> None:
        self.options = options
        self.name = name
        self.home = options.home
        self.settings = with_own_encoding(dict(options.settings))
        self.record: Record = {"night": name, "metric": options.gate.metric}

    def run(self) -> None:
        gate = self.options.gate
        served = self.home / SERVED
        running = self.opened(served) if served.exists() else None
        data = self.prepared()
        since = None if running is None else running.config.get("trained_until")
        latest = begun_after(data, since)
        rival = running
        if since is not None and not latest.test.sessions:
            self.stop(
                NOTHING_NEW,
                f"no session of two clicks began after {moment(since)}, when the latest one "
                "began that the running model was trained on",
            )
            # Forced: the running model can't be judged on what it was trained on.
            rival = None
            since = None
            latest = begun_after(data, since)
        nights = promoted_nights(self.home)
        described = describe_latest(latest, since)
        self.record["latest_day"] = described
        few = gate.enough(ALL, len(latest.test))
        self.stop(HELD, *few, *gate.volume(described, nights))
        candidate = self.trained(data, running)
        self.judge(candidate, rival, latest)
        self.stop(HELD, *gate.faults(self.record, nights))
        self.promote(candidate)

    def stop(self, outcome: str, *reasons: str) -> None:
        """End the night if there is a reason; `--force` records the reasons, and goes on."""
        if reasons and not self.options.force:
            raise Stopped(outcome, *reasons)
        if reasons:
            self.record.setdefault("forced", []).extend(reasons)

    def end(self, outcome: str, *reasons: str) -> None:
        self.record |= {"outcome": outcome, "reasons": list(reasons)}

    def opened(self, path: Path) -> Run:
        run = open_start(path, self.options.model, self.settings.get("encoding"))
        assert run is not None
        return run

    def prepared(self) -> PreparedDataset:
        """The log, whose test part is the sessions of the latest days."""
        out = self.home / DATA / self.name
        try:
            return self.prepare(out, test_days=self.options.test_days)
        except NothingToRead as error:
            raise Stopped(NOTHING_NEW, str(error)) from None

    def prepare(self, out: Path, **split: Any) -> PreparedDataset:
        options = self.options
        return prepare(
            options.log,
            out=out,
            items=options.items,
            progress=options.progress,
            **split,
            **options.prepare,
        )

    def trained(self, data: PreparedDataset, running: Run | None) -> Run:
        """A model that was not trained on the latest day. It starts from what was judged when the
        running model was promoted: that one has already been trained on all other days."""
        options = self.options
        model = options.model
        start = None
        if running is not None:
            model = model or running.config["model"]
            if not options.fresh and can_start(running, model):
                judged = self.home / JUDGED / (self.home / SERVED).resolve().name
                start = self.opened(judged) if judged.exists() else running
        fit = self.fit_options(self.settings, start_from=start, export=False)
        return write_run(data, model, self.home / JUDGED / self.name, fit)[0]

    def fit_options(self, settings: Mapping[str, Any], **more: Any) -> FitOptions:
        options = self.options
        return FitOptions(settings, options.device, options.progress, **more)

    def judge(self, new: Run, running: Run | None, latest: PreparedDataset) -> None:
        options = self.options
        metric = options.gate.metric
        models = {"new": new} if running is None else {"new": new, "running": running}
        self.record |= compared(
            models, latest, options.items, metric, options.device, options.progress
        )
        times = latest.test.times
        self.record["judged"] = {
            "run": f"{JUDGED}/{self.name}",
            "dataset": latest.fingerprint,
            "from": moment(times.min()),
            "until": moment(times.max()),
        }
        reason = f"its {metric} on all clicks is {self.record['new'][ALL]:.3f}"
        if running is not None:
            figure = self.record["running"][ALL]
            reason += f", and the running model's {figure:.3f}"
        self.record["reasons"] = [reason]

    def promote(self, candidate: Run) -> None:
        """Continue or repeat the training on all sessions, try the run out, and serve it."""
        options = self.options
        out = self.home / RUNS / self.name
        settings = dict(self.settings)
        start = None
        if isinstance(candidate.model, SessionModel):
            start = candidate
            settings["protocol"] = "paper"  # no session is held out
        notes = {"night": self.name, "judged": self.record["judged"]}
        fit = self.fit_options(
            settings, start_from=start, export=options.export, notes=notes
        )
        model = options.model or candidate.config["model"]
        options.progress.message(
            "training on all sessions, with those of the latest day"
        )
        with scratch_folder(self.home / DATA / self.name) as folder:
            # Not in the folder itself, whose lock shows that it is not a leftover.
            data = self.prepare(folder / "all" / "data", no_test=True)
            write_run(data, model, out, fit)
        try_out(self.recommender(out))
        switch(self.home / SERVED, Path(RUNS) / self.name)
        until = data.trained_until
        assert until is not None  # a log without times has no latest day
        self.record["trained_on"] = {
            "run": f"{RUNS}/{self.name}",
            "dataset": data.fingerprint,
            "until": moment(until),
        }
        self.record["outcome"] = PROMOTED

    def recommender(self, out: Path) -> Recommender:
        """The run as a server opens it."""
        config = read_config(out)
        spec = None if config["model"] in MODELS else self.options.model
        has_own_encoding = is_own(str(config.get("encoding")))
        encoding = self.settings["encoding"] if has_own_encoding else None
        return Recommender.load(out, self.options.device, spec, encoding)


def can_start(running: Run, model: str) -> bool:
    """Whether training can start from the running model: the same model, and a trained one."""
    is_same = model_name(model) == running.config["model"]
    return is_same and isinstance(running.model, SessionModel)
