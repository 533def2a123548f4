"""Warm start: training that continues from a run on another dataset, as every night on the newest
log.

Items are matched by their ids. A new item i starts from those clicked near it and those that share
its attributes:

    x_i = (sum over known j of C_ij x_j + m_i) / (sum over known j of C_ij + 1)

C_ij counts co-clicks, and m_i is the mean vector of the known items with the attributes of i; the 1
is there only if such items exist. All other weights are copied, and Adam goes on with the run's
second moments. An epoch has the sessions that are later than those of the run, and a few of the
others."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.item_attributes import AUTO, chosen_columns, encode_attributes
from posrec.data.vocabulary import Vocabulary
from posrec.encodings.schemes import OwnEncoding
from posrec.errors import InputError
from posrec.io import CONTINUATION, WEIGHTS
from posrec.models.base import SessionModel
from posrec.models.own_code import is_own
from posrec.models.registry import MODELS, ModelSpec
from posrec.nn.items.attribute_vectors import mean_by_attributes
from posrec.nn.items.coclicks import co_clicks
from posrec.nn.items.item_table import ItemTable, padded_rows
from posrec.runs.folder import Run, read_config
from posrec.runs.run import load_run
from posrec.training.settings import Settings
from posrec.training.start import Continuation, Start, set_moments

CO_CLICK_WINDOW = 2  # items clicked at most so far apart are co-clicked
ROUNDS_OF_NEIGHBOURS = 3  # an item whose neighbours are new too gets a vector from theirs in the next round
STARTED_FROM = "started_from"  # in config.json
RATE_OF_A_WARM_START = (
    0.1  # the learning rate of a warm start, in that of the run that it starts from
)


@dataclass(frozen=True)
class WarmStart(Start):
    """The weights of a run, as a start for a model of another dataset's items."""

    run: Run
    vocabulary: Vocabulary  # of the new dataset
    items: int  # of them, those of the new model
    has_times: bool = True  # whether the sessions of the new dataset have times

    def __post_init__(self) -> None:
        if not self.known_items:
            raise InputError(
                f"{self.run.path} knows none of the items of the dataset, so there is nothing to start from; "
                "check that both logs have the same item ids"
            )
        assert (
            self.continuation
        )  # a damaged file is refused here, before anything is written

    @cached_property
    def continuation(self) -> Continuation:
        assert self.run.continuation is not None  # every run of a trained model has one
        return Continuation.of_file(
            self.run.path / CONTINUATION, *self.run.continuation
        )

    @cached_property
    def old_rows(self) -> Tensor:
        """[items] the row of each item in the run's tables, -1 for a new item."""
        known = self.run.model.items
        found = (
            self.run.vocabulary.find(item) for item in self.vocabulary.ids[: self.items]
        )
        return torch.tensor(
            [-1 if number is None or number > known else number - 1 for number in found]
        )

    @cached_property
    def known_items(self) -> int:
        return int((self.old_rows >= 0).sum())

    def messages(self, data: PreparedDataset, protocol: str) -> Iterator[str]:
        """What is known of the run's items, and what the user should know about the sessions."""
        known = self.known_items
        yield (
            f"starting from {self.run.path}: {known:,} items are known, {self.items - known:,} are new, "
            f"{self.run.model.items - known:,} are no longer there"
        )
        if not self.has_times:
            yield "the log has no times, which would tell the new sessions; an epoch has all sessions"
        elif protocol != "paper":
            seen = int((data.validation.times <= self.continuation.trained_until).sum())
            if seen:
                yield (
                    f"warning: the run was trained on {seen:,} of {data.validation.sessions:,} validation sessions, so "
                    f"protocol={protocol} chooses an epoch on sessions that the model knows; use protocol=paper"
                )

    def set_weights(self, model: SessionModel, samples: SessionDataset) -> None:
        old = self.run.model.state_dict()
        weights = model.saved_weights()
        of_items = item_tables(model)
        parameters = {name for name, _ in model.named_parameters()}
        sizes = (self.items, padded_rows(self.items))
        for name, new in weights.items():
            before = old.get(name)
            if name not in parameters and new.dim() and len(new) in sizes:
                continue  # what the model has counted for each item
            if (
                name in of_items
                and before is not None
                and before.shape[1] == new.shape[1]
            ):
                weights[name] = self.moved(before.to(new), new, samples)
            elif before is not None and before.shape == new.shape:
                weights[name] = before.to(new)
            elif name in parameters:
                shape = "nothing" if before is None else tuple(before.shape)
                raise InputError(
                    f"{self.run.path} can't be the start: {name} would have the shape {tuple(new.shape)}, and the run "
                    f"has {shape}; use the run's own settings of the model (d, max_length, ...)"
                )
        model.load_saved_weights(weights)

    def set_moments(
        self, model: SessionModel, optimizer: torch.optim.Optimizer
    ) -> None:
        """A new item, and every row of a weight of another shape, has the mean of the run's rows."""
        of_items = item_tables(model)
        moments = dict(self.continuation.moments)
        for name, parameter in model.named_parameters():
            if (
                (rows := moments.get(name)) is None
                or not rows.dim()
                or not len(parameter)
            ):
                continue
            whole = rows.mean().expand(len(parameter)).clone()
            if name in of_items and len(rows) >= self.run.model.items:
                known = self.old_rows >= 0
                whole[: self.items][known] = rows[self.old_rows[known]]
            elif len(rows) == len(parameter):
                whole = rows
            moments[name] = whole
        set_moments(model, optimizer, moments)

    def new_samples(self, samples: SessionDataset) -> Tensor | None:
        return (
            samples.begun_after(self.continuation.trained_until)
            if self.has_times
            else None
        )

    def moved(self, old: Tensor, new: Tensor, samples: SessionDataset) -> Tensor:
        """The run's table of item vectors, `old`, for the items of the new model, whose own is
        `new`."""
        rows = self.old_rows.to(old.device)
        known = rows >= 0
        table = torch.where(known[:, None], old[rows], 0)
        if known.all():
            return torch.cat([table, new[self.items :]])
        item, other, count = (
            part.to(old.device)
            for part in co_clicks(
                samples.items, samples.offsets, self.items, CO_CLICK_WINDOW
            )
        )
        row = item - 1
        column = other - 1
        count = count.to(old.dtype)[:, None]
        columns = chosen_columns(AUTO, self.vocabulary)
        attributes = encode_attributes(self.vocabulary, columns, self.items)
        alike, has_alike = mean_by_attributes(attributes, table, known)
        found = known
        for _ in range(ROUNDS_OF_NEIGHBOURS):
            read = ~known[row] & found[column]
            sums = torch.zeros_like(table).index_add_(
                0, row[read], count[read] * table[column[read]]
            )
            total = old.new_zeros(self.items, 1).index_add_(0, row[read], count[read])
            sums = sums + alike * has_alike[:, None]
            total = total + has_alike[:, None]
            found = known | (total[:, 0] > 0)
            table = torch.where(known[:, None], table, sums / total.clamp(min=1e-9))
        return torch.cat(
            [torch.where(found[:, None], table, new[: self.items]), new[self.items :]]
        )


def item_tables(model: SessionModel) -> set[str]:
    """The names of the weights that have a row for each item."""
    return {
        f"{name}.weight"
        for name, part in model.named_modules()
        if isinstance(part, ItemTable)
    }


def inherited_settings(run: Run, spec: ModelSpec) -> tuple[Any, Settings]:
    """The model's settings and those of its training, unless others are given: the run's own, but
    for a warm start.

    That is as many epochs, each of the new sessions and a few others, at a tenth of the learning
    rate, which falls along a cosine to 0. A run that was itself a warm start is repeated as it is.
    """
    (training,) = split_settings(
        run.config.get("training", {}), Settings(**spec.settings)
    )
    if STARTED_FROM not in run.config:
        rate = RATE_OF_A_WARM_START * training.learning_rate
        training = replace(
            training,
            protocol="paper",
            schedule="cosine",
            warmup=0.0,
            learning_rate=rate,
        )
    return run.model.config, training


def origin(run: Run) -> dict[str, Any]:
    """What config.json says about the run that training started from."""
    dataset = run.config.get("dataset", "")
    weights = run.sha256.get(WEIGHTS, "")
    return {"run": str(run.path.resolve()), "dataset": dataset, "weights": weights}


def open_start(
    start_from: str | Path | Run | None, model: str | ModelSpec | None, encoding: Any
) -> Run | None:
    """The run to start from. The code of a model or an encoding of one's own is run only if the
    caller has named it."""
    if start_from is None or isinstance(start_from, Run):
        return start_from
    config = read_config(Path(start_from))
    recorded = config.get("encoding")
    own_encoding = encoding if isinstance(encoding, OwnEncoding) else None
    if not (isinstance(recorded, str) and is_own(recorded)):
        own_encoding = (
            None  # the run has none; the new one has another encoding than the run
        )
    elif own_encoding is None:
        raise InputError(
            f"{start_from} has an encoding that is not posrec's own, {recorded}; if you trust that code, name it with "
            "--set encoding=FILE.py:NAME, or in Python with encoding=NAME"
        )
    return load_run(
        start_from, model if config["model"] not in MODELS else None, own_encoding
    )


def check_same_model(run: Run, name: str) -> None:
    """Refuse a run of another model, and one that has nothing to start from."""
    if run.config["model"] != name:
        raise InputError(
            f"{run.path} holds {run.config['model']}, not {name}; start from a run of the same model, or leave "
            "--model out"
        )
    if not isinstance(run.model, SessionModel):
        raise InputError(
            f"{name} counts its sessions anew and has no weights to start from; leave --from out"
        )
