"""What is fitted: the options of a training, and the model, settings and dataset that follow from
them. `plan_fit` refuses what can't be trained before anything is written."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posrec.config import DEFAULT_MODEL, split_settings
from posrec.data.dataset import PreparedDataset, with_items_of
from posrec.data.item_attributes import chosen_columns, encode_attributes
from posrec.device import choose_device
from posrec.errors import InputError, plural
from posrec.fitting.warm_start import (
    STARTED_FROM,
    WarmStart,
    check_same_model,
    inherited_settings,
    open_start,
    origin,
)
from posrec.models.base import Model, SessionModel
from posrec.models.registry import ModelSpec, find_spec, model_name, with_own_encoding
from posrec.progress import Progress, default_progress
from posrec.runs.beginning import run_config
from posrec.runs.folder import Run
from posrec.training.loop import TrainingContext
from posrec.training.settings import Settings


@dataclass(frozen=True)
class FitOptions:
    """How a model is fitted and what is kept of it; `posrec.fit_run` explains each option."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    progress: Progress = field(default_factory=default_progress)
    resume: bool = False
    track: bool = False
    resumable: bool = True
    start_from: str | Path | Run | None = None
    keep_items: bool = False
    export: bool = True

    def context(self, out: Path) -> TrainingContext:
        device = choose_device(self.device)
        return TrainingContext(
            out, device, self.progress, self.resume, self.track, self.resumable
        )


@dataclass(frozen=True)
class FitJob:
    """A model with its settings, to be trained on a dataset."""

    name: str
    spec: ModelSpec
    model_config: Any
    training: Settings
    data: PreparedDataset
    start_from: Run | None  # instead of random weights

    @property
    def items(self) -> int:
        return items_of(self.model_config, self.data)

    def build(self) -> Model:
        return build_network(self.spec, self.model_config, self.data)

    def config(self) -> dict[str, Any]:
        """The config.json of the run."""
        config = run_config(
            self.name, self.model_config, self.training, self.data, self.items
        )
        if self.start_from is not None:
            config[STARTED_FROM] = origin(self.start_from)
        return config

    def warm_start(self, progress: Progress) -> WarmStart | None:
        if self.start_from is None:
            return None
        has_times = self.data.trained_until is not None
        start = WarmStart(self.start_from, self.data.vocabulary, self.items, has_times)
        for text in start.messages(self.data, self.training.protocol):
            progress.message(text)
        return start

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
    """Choose the model and its settings, and raise an InputError for what can't be trained."""
    settings = with_own_encoding(dict(options.settings))
    start = open_start(options.start_from, model, settings.get("encoding"))
    if model is None:
        model = DEFAULT_MODEL if start is None else start.config["model"]
    name = model_name(model)
    spec = find_spec(model)
    defaults = None
    if start is not None:
        check_same_model(start, name)
        defaults = inherited_settings(start, spec)
    if options.keep_items:
        data = keep_items(data, start, options.progress)
    model_config, training = configs_of(spec, settings, defaults)
    if spec.is_trained and training.protocol != "paper":
        require_validation_part(data)
    return FitJob(name, spec, model_config, training, data, start)


def configs_of(
    spec: ModelSpec,
    settings: Mapping[str, Any],
    defaults: tuple[Any, Settings] | None = None,
) -> tuple[Any, Settings]:
    """The configs of a model and of its training with `settings` in them; checked."""
    defaults = defaults or (spec.config(), Settings(**spec.settings))
    config, training = split_settings(with_own_encoding(dict(settings)), *defaults)
    training.check()
    return config, training


def keep_items(
    data: PreparedDataset, start: Run | None, progress: Progress
) -> PreparedDataset:
    """The dataset with the items of the run `start` that it does not have."""
    if start is None:
        raise InputError("--keep-items needs --from, the run whose items are kept")
    larger = with_items_of(data, start.vocabulary, start.model.items)
    count = plural(larger.train_items - data.train_items, "item")
    progress.message(f"keeping {count} of the run that the dataset does not have")
    return larger


def items_of(model_config: Any, data: PreparedDataset) -> int:
    """The number of items of a model; one that reads attributes has those of the items file too."""
    if getattr(model_config, "attributes", None):
        return data.recommendable_items
    return data.train_items


def build_network(spec: ModelSpec, model_config: Any, data: PreparedDataset) -> Model:
    items = items_of(model_config, data)
    network = spec.build(items, model_config)
    if names := getattr(model_config, "attributes", None):
        assert isinstance(network, SessionModel)
        columns = chosen_columns(names, data.vocabulary)
        network.describe(encode_attributes(data.vocabulary, columns, items))
    return network


def require_validation_part(data: PreparedDataset) -> None:
    """Raise an InputError if the validation part, or what is left without it, has no samples."""
    if not len(data.validation) or not len(data.fitting):
        raise InputError(
            f"{data.path} has too few training sessions to validate on the latest tenth of "
            "them; prepare a longer log (posrec train --protocol paper needs no validation)"
        )
