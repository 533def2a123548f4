"""What is fitted: the options of a training, and the model, settings and data that follow."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from posrec.config import DEFAULT_MODEL, split_settings
from posrec.data.dataset import PreparedDataset, with_items_of
from posrec.data.item_attributes import Report, chosen_columns, encode_attributes
from posrec.device import choose_device
from posrec.errors import InputError, plural
from posrec.fitting.warm_start import (
    STARTED_FROM,
    WarmStart,
    check_same_model,
    inherited_settings,
    open_start,
)
from posrec.io import WEIGHTS
from posrec.models.base import Model, SessionModel
from posrec.models.registry import ModelSpec, find_spec, model_name, with_own_encoding
from posrec.progress import Progress, default_progress
from posrec.runs.folder import Run
from posrec.runs.run import run_config
from posrec.training.loop import TrainingContext
from posrec.training.settings import Settings


@dataclass(frozen=True)
class FitOptions:
    """How a model is fitted and what is kept; `posrec.fit_run` explains each option."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    progress: Progress = field(default_factory=default_progress)
    resume: bool = False
    track: str | None = None
    resumable: bool = True
    start_from: str | Path | Run | None = None
    keep_items: bool = False
    export: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)  # in config.json too

    def context(self, out: Path) -> TrainingContext:
        device = choose_device(self.device)
        return TrainingContext(
            out, device, self.progress, self.resume, resumable=self.resumable
        )


@dataclass(frozen=True)
class FitJob:
    """A model with its settings, to be trained on a dataset."""

    name: str
    spec: ModelSpec
    model_config: Any
    training: Settings
    data: PreparedDataset
    start: WarmStart | None  # instead of random weights
    report: Report
    notes: Mapping[str, Any]

    def build(self) -> Model:
        return build_network(self.spec, self.model_config, self.data, self.report)

    def config(self) -> dict[str, Any]:
        """The config.json of the run."""
        items = items_of(self.model_config, self.data)
        config = run_config(
            self.name, self.model_config, self.training, self.data, items
        )
        if self.start is not None:
            run = self.start.run
            config[STARTED_FROM] = {
                "run": str(run.path.resolve()),
                "dataset": run.config.get("dataset", ""),
                "weights": run.sha256.get(WEIGHTS, ""),
            }
        return {**config, **self.notes}

    def memory_advice(self) -> str:
        """What a user can do if the training does not fit into memory."""
        if not self.spec.is_trained:
            return "train on less: posrec prepare --fraction keeps the most recent part"
        sizes = {**asdict(self.training), **asdict(self.model_config)}
        lower = [
            f"{name} (now {sizes[name]})"
            for name in ("batch_size", "max_length", "d")
            if name in sizes
        ]
        loss = self.training.loss
        return f"lower {', '.join(lower)}, or set loss=chunked (now {loss})"


def plan_fit(
    data: PreparedDataset, model: str | ModelSpec | None, options: FitOptions
) -> FitJob:
    """Raise an InputError for what can't be trained, before anything is written."""
    settings = with_own_encoding(dict(options.settings))
    run = open_start(options.start_from, model, settings.get("encoding"))
    if model is None:
        model = DEFAULT_MODEL if run is None else run.config["model"]
    name = model_name(model)
    spec = find_spec(model)
    defaults = None
    if run is not None:
        check_same_model(run, name)
        defaults = inherited_settings(run, spec)
    if options.keep_items:
        data = keep_items(data, run, options.progress)
    model_config, training = configs_of(spec, settings, defaults)
    if spec.is_trained and training.protocol != "paper":
        require_validation_part(data)
    start = None
    if run is not None:
        has_times = data.trained_until is not None
        start = WarmStart(run, data.vocabulary, items_of(model_config, data), has_times)
        for text in start.messages(data, training.protocol):
            options.progress.message(text)
    report = cache(options.progress.message)  # once, as a refit builds two models
    notes = options.notes
    return FitJob(name, spec, model_config, training, data, start, report, notes)


def configs_of(
    spec: ModelSpec,
    settings: Mapping[str, Any],
    defaults: tuple[Any, Settings] | None = None,
) -> tuple[Any, Settings]:
    """The model's config and that of its training, with `settings` in them."""
    defaults = defaults or (spec.config(), Settings(**spec.settings))
    if "epochs" in settings:  # the user has said how long
        settings = {"extend": False, **settings}
    config, training = split_settings(with_own_encoding(dict(settings)), *defaults)
    training.check()
    return config, training


def keep_items(
    data: PreparedDataset, run: Run | None, progress: Progress
) -> PreparedDataset:
    """The dataset with the items of the run that it does not have."""
    if run is None:
        raise InputError("--keep-items needs --from, the run whose items are kept")
    larger = with_items_of(data, run.vocabulary, run.model.items)
    count = plural(larger.train_items - data.train_items, "item")
    progress.message(f"keeping {count} of the run that the dataset does not have")
    return larger


def items_of(model_config: Any, data: PreparedDataset) -> int:
    """A model that reads attributes has the items of the items file too."""
    if getattr(model_config, "attributes", None):
        return data.recommendable_items
    return data.train_items


def build_network(
    spec: ModelSpec,
    model_config: Any,
    data: PreparedDataset,
    report: Report,
) -> Model:
    items = items_of(model_config, data)
    network = spec.build(items, model_config)
    if names := getattr(model_config, "attributes", None):
        assert isinstance(network, SessionModel)
        columns = chosen_columns(names, data.vocabulary, report)
        network.describe(encode_attributes(data.vocabulary, columns, items))
    return network


def require_validation_part(data: PreparedDataset) -> None:
    if not len(data.validation) or not len(data.fitting):
        raise InputError(
            f"{data.path} has too few training sessions to validate on the latest tenth of "
            "them; prepare a longer log (posrec train --protocol paper needs no validation)"
        )
