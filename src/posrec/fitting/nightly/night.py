"""One night: prepare the log, train without its latest day, judge on that day, train on it too.

judged/NIGHT is the model that was trained without the latest day; the next night's starts from it.
runs/NIGHT continues it on all sessions, and is what is served, by the link `current`, which is the
last to change.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.pipeline import prepare
from posrec.encodings.schemes import OwnEncoding
from posrec.errors import NothingToRead
from posrec.fitting.fit import write_run
from posrec.fitting.job import FitOptions
from posrec.fitting.nightly.gate import Gate
from posrec.fitting.nightly.home import (
    FAILED,
    HELD,
    NOTHING_NEW,
    PROMOTED,
    Record,
    add_night,
    promoted_nights,
    remove_night,
    remove_old,
    switch,
)
from posrec.fitting.nightly.judging import begun_after, compared, described, moment
from posrec.fitting.warm_start import open_start
from posrec.io.unfinished import one_writer, scratch_folder
from posrec.models.base import SessionModel
from posrec.models.registry import model_name
from posrec.recommend.recommender import Recommender
from posrec.recommend.try_out import try_out
from posrec.runs.folder import Run


class Stopped(Exception):
    """The night ends without a new model: its outcome, and the reasons."""


@dataclass
class Night:
    """The steps of a night; the help of `posrec nightly` explains its options. `record` is its line
    in nights.jsonl: what each step has found."""

    log: str
    home: Path
    items: str | None
    preparing: Mapping[str, Any]
    model: str | None
    fit: FitOptions
    gate: Gate
    fresh: bool = False
    test_days: float = 1.0
    keep: int = 7
    force: bool = False
    record: Record = field(default_factory=dict)

    def run(self) -> Record:
        self.gate.check()
        with one_writer(self.home):
            name = time.strftime("%Y%m%dT%H%M%S")
            while (self.home / "data" / name).exists():
                name += "-again"
            self.record |= {"night": name, "metric": self.gate.metric}
            try:
                outcome, *reasons = self.outcome()
            except Stopped as stopped:
                outcome, *reasons = stopped.args
            except NothingToRead as error:
                outcome, *reasons = NOTHING_NEW, str(error)
            except Exception as error:
                # A night that fails in any way must leave the running model in place.
                outcome, *reasons = FAILED, str(error) or type(error).__name__
            self.record |= {"outcome": outcome, "reasons": reasons}
            add_night(self.home, self.record)
            if outcome == NOTHING_NEW:
                remove_night(self.home, name)
            remove_old(self.home, self.keep)
        return self.record

    def outcome(self) -> tuple[str, str]:
        """PROMOTED and the figures; all else is raised."""
        served = self.home / "current"
        running = self.opened(served) if served.exists() else None
        data = self.prepared(self.folder("data"), test_days=self.test_days)
        since = (running and running.config.get("trained_until")) or -1
        latest = begun_after(data, since)
        models = {} if running is None else {"running": running}
        if not latest.test.sessions:
            self.stop(
                NOTHING_NEW,
                "no session of two clicks is later than those that the running model was "
                f"trained on: the latest of them began at {moment(since)}",
            )
            # Forced: the running model can't be judged on what it was trained on.
            models = {}
            since = -1
            latest = begun_after(data, since)
        nights = promoted_nights(self.home)
        self.record["latest_day"] = described(latest, since)
        few = self.gate.enough("all", len(latest.test))
        self.stop(HELD, *few, *self.gate.volume(self.record["latest_day"], nights))
        new = self.trained(data, running)
        models = {"new": new, **models}
        self.record |= compared(models, latest, self.items, self.gate.metric, self.fit)
        self.record["judged"] = {
            "dataset": latest.fingerprint,
            "from": moment(latest.test.times.min()),
            "until": moment(latest.test.times.max()),
        }
        self.stop(HELD, *self.gate.models(self.record, nights))
        self.promote(new)
        figures = [
            f"the {name} model's {self.record[name]['all']:.3f}" for name in models
        ]
        return PROMOTED, f"{self.gate.metric} on all clicks is {' and '.join(figures)}"

    def stop(self, outcome: str, *reasons: str) -> None:
        """End the night if there is a reason; `--force` records the reasons, and goes on."""
        if reasons and not self.force:
            raise Stopped(outcome, *reasons)
        if reasons:
            self.record.setdefault("forced", []).extend(reasons)

    def folder(self, kind: str) -> Path:
        return self.home / kind / str(self.record["night"])

    def opened(self, path: Path) -> Run:
        run = open_start(path, self.model, self.fit.settings.get("encoding"))
        assert run is not None
        return run

    def prepared(self, out: Path, **split: Any) -> PreparedDataset:
        options = {**self.preparing, "items": self.items, **split}
        return prepare(self.log, out=out, progress=self.fit.progress, **options)

    def trained(self, data: PreparedDataset, running: Run | None) -> Run:
        """A model that was not trained on the latest day. It starts from what was judged when the
        running model was promoted: that one has already been trained on all other days."""
        model = self.model
        start = None
        if running is not None:
            model = model or running.config["model"]
            is_same = model_name(model) == running.config["model"]
            if is_same and is_trained(running) and not self.fresh:
                judged = self.home / "judged" / running.path.resolve().name
                start = self.opened(judged) if judged.exists() else running
        fit = replace(self.fit, start_from=start, export=False)
        return write_run(data, model, self.folder("judged"), fit)[0]

    def promote(self, new: Run) -> None:
        """Continue or repeat the training on all sessions, try the run out, and serve it."""
        notes = {name: self.record[name] for name in ("night", "judged")}
        fit = replace(self.fit, notes=notes)
        if is_trained(new):
            settings = {**fit.settings, "protocol": "paper"}  # no session is held out
            fit = replace(fit, start_from=new, settings=settings)
        fit.progress.message("training on all sessions, with those of the latest day")
        out = self.folder("runs")
        with scratch_folder(self.folder("data")) as folder:
            # Not in the folder itself, whose lock shows that it is not a leftover.
            data = self.prepared(folder / "all" / "data", no_test=True)
            write_run(data, self.model or new.config["model"], out, fit)
        encoding = fit.settings.get("encoding")
        own_encoding = encoding if isinstance(encoding, OwnEncoding) else None
        try_out(Recommender.load(out, fit.device, self.model, own_encoding))
        switch(self.home / "current", out.relative_to(self.home))
        until = moment(data.train.times.max())
        self.record["trained_on"] = {"dataset": data.fingerprint, "until": until}


def is_trained(run: Run) -> bool:
    return isinstance(run.model, SessionModel)
