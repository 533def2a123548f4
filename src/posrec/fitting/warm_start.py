"""Warm start: training that continues from a run on another dataset, as every night on the newest
log.

Items are matched by their ids; a new item starts from its neighbours and from items with the same
attributes. All other weights are copied, and Adam goes on with the run's second moments. An epoch
has the sessions that are later than those of the run, and a few of the others.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.config import split_settings
from posrec.data.attribute_reader import AttributeReader
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.item_attributes import AUTO, chosen_columns, encode_attributes
from posrec.data.vocabulary import Vocabulary
from posrec.encodings.schemes import OwnEncoding
from posrec.errors import InputError
from posrec.io import CONTINUATION
from posrec.models.base import SessionModel
from posrec.models.own_code import is_own
from posrec.models.registry import MODELS, ModelSpec
from posrec.nn.items.attribute_vectors import mean_by_attributes
from posrec.nn.items.coclicks import co_clicks
from posrec.nn.items.item_table import ItemTable, padded_rows
from posrec.runs.folder import Run, read_config
from posrec.runs.run import load_run
from posrec.training.optimizers import Optimizer
from posrec.training.settings import Settings
from posrec.training.start import Continuation, Start, set_moments

CO_CLICK_WINDOW = 2  # items that are at most this many clicks apart are co-clicked
# An item whose neighbours are new too gets a vector from theirs in the next round.
ROUNDS_OF_NEIGHBOURS = 3
STARTED_FROM = "started_from"  # in config.json
# The learning rate of a warm start, as a share of that of the run that it starts from.
RATE_OF_A_WARM_START = 0.1


@dataclass(frozen=True)
class WarmStart(Start):
    """The weights of a run, as a start for a model of another dataset's items."""

    run: Run
    vocabulary: Vocabulary  # of the new dataset
    items: int  # of the new model: the first ones of the vocabulary
    has_times: bool = True  # of the new dataset's sessions

    def __post_init__(self) -> None:
        if not self.known_items:
            raise InputError(
                f"{self.run.path} knows none of the items of the dataset, so there is nothing "
                "to start from; check that both logs have the same item ids"
            )
        # A damaged file is refused here, before anything is written.
        assert self.continuation

    @cached_property
    def continuation(self) -> Continuation:
        path = self.run.path / CONTINUATION
        if self.run.continuation is None:
            raise InputError(
                f"{self.run.path} has no {CONTINUATION}, because it was saved from a run that was "
                "opened to recommend; start from the run that was trained"
            )
        return Continuation.of_file(path, *self.run.continuation)

    @cached_property
    def old_rows(self) -> Tensor:
        """[items] the row of each item in the run's tables, -1 for a new item."""
        rows = []
        for item in self.vocabulary.ids[: self.items]:
            number = self.run.vocabulary.find(item) or 0
            is_known = 1 <= number <= self.run.model.items
            rows.append(number - 1 if is_known else -1)
        return torch.tensor(rows)

    @cached_property
    def known_items(self) -> int:
        return int((self.old_rows >= 0).sum())

    def messages(self, data: PreparedDataset, protocol: str) -> Iterator[str]:
        """What the user should know about the items and the sessions."""
        known = self.known_items
        yield (
            f"starting from {self.run.path}: {known:,} items are known, "
            f"{self.items - known:,} are new, "
            f"{self.run.model.items - known:,} are no longer there"
        )
        if not self.has_times:
            yield (
                "the log has no times, which would tell the new sessions; an epoch has all "
                "sessions"
            )
        elif protocol != "paper":
            validation = data.validation
            seen = int((validation.times <= self.continuation.trained_until).sum())
            if seen:
                yield (
                    f"warning: the run was trained on {seen:,} of {validation.sessions:,} "
                    f"validation sessions, so protocol={protocol} chooses an epoch on sessions "
                    "that the model knows; use protocol=paper"
                )

    def set_weights(self, model: SessionModel, samples: SessionDataset) -> None:
        run_weights = self.run.model.state_dict()
        weights = model.saved_weights()
        tables = item_tables(model)
        parameters = {name for name, _ in model.named_parameters()}
        sizes = (self.items, padded_rows(self.items))
        for name, new in weights.items():
            if name not in parameters and new.dim() and len(new) in sizes:
                continue  # what the model has counted for each item
            old = run_weights.get(name)
            if old is not None and old.shape == new.shape and name not in tables:
                weights[name] = old.to(new)
            elif old is not None and name in tables and old.shape[1] == new.shape[1]:
                weights[name] = self.moved(old.to(new), new, samples)
            elif name in parameters:
                shape = "nothing" if old is None else tuple(old.shape)
                raise InputError(
                    f"{self.run.path} can't be the start: {name} would have the shape "
                    f"{tuple(new.shape)}, and the run has {shape}; use the run's own settings "
                    "of the model (d, max_length, ...)"
                )
        model.load_saved_weights({**weights, **self.attribute_weights(model)})

    def attribute_weights(self, model: SessionModel) -> dict[str, Tensor]:
        """The run's vectors of the values that the new items have too; NaN for other values."""
        parts = model.attribute_parts()
        kept = self.run.attributes
        if parts is None or kept is None:
            return {}
        reader = AttributeReader.from_json(parts[1]["columns"])
        rows = {name: row for row, name in enumerate(kept.reader.names)}
        row_of_value = torch.tensor([rows.get(name, -1) for name in reader.names])
        device = parts[0]["of_values"].device
        nothing = torch.full((1, kept.of_values.shape[1]), math.nan)
        of_values = torch.cat([torch.from_numpy(kept.of_values), nothing])
        weights = {"attributes.of_values": of_values[row_of_value].to(device)}
        if reader.width and reader.widths == kept.reader.widths:
            weights["attributes.map"] = torch.from_numpy(kept.map).to(device)
        return weights

    def set_moments(self, model: SessionModel, optimizer: Optimizer) -> None:
        """New items, and all rows of a weight of another shape, have the mean of the run's rows."""
        tables = item_tables(model)
        moments = dict(self.continuation.moments)
        for name, parameter in model.named_parameters():
            old = moments.get(name)
            if old is None or not old.dim() or not len(parameter):
                continue
            rows = old.mean().expand(len(parameter)).clone()
            if name in tables and len(old) >= self.run.model.items:
                is_known = self.old_rows >= 0
                rows[: self.items][is_known] = old[self.old_rows[is_known]]
            elif len(old) == len(parameter):
                continue
            moments[name] = rows
        set_moments(model, optimizer, moments)

    def new_samples(self, samples: SessionDataset) -> Tensor | None:
        if not self.has_times:
            return None
        return samples.begun_after(self.continuation.trained_until)

    def moved(self, old: Tensor, new: Tensor, samples: SessionDataset) -> Tensor:
        """The run's table of item vectors, `old`, in the order of the new items. `new` is the
        initial table."""
        rows = self.old_rows.to(old.device)
        is_known = rows >= 0
        table = torch.where(is_known[:, None], old[rows], 0)
        padding = new[self.items :]
        if is_known.all():
            return torch.cat([table, padding])
        pairs = co_clicks(samples.items, samples.offsets, self.items, CO_CLICK_WINDOW)
        item, other, count = (values.to(old.device) for values in pairs)
        row = item - 1
        column = other - 1
        count = count.to(old.dtype)[:, None]
        columns = chosen_columns(AUTO, self.vocabulary)
        attributes = encode_attributes(self.vocabulary, columns, self.items)
        alike, has_alike = mean_by_attributes(attributes, table, is_known)
        # A new item i starts at
        #     x_i = (sum over known j of C_ij x_j + m_i) / (sum over known j of C_ij + 1)
        # C_ij counts co-clicks; m_i is the mean vector of the known items with the attributes of
        # i, and is left out with the 1 if there are none.
        has_vector = is_known
        for _ in range(ROUNDS_OF_NEIGHBOURS):
            is_used = ~is_known[row] & has_vector[column]
            target = row[is_used]
            weight = count[is_used]
            neighbours = weight * table[column[is_used]]
            sums = torch.zeros_like(table).index_add_(0, target, neighbours)
            total = old.new_zeros(self.items, 1).index_add_(0, target, weight)
            sums = sums + alike * has_alike[:, None]
            total = total + has_alike[:, None]
            has_vector = is_known | (total[:, 0] > 0)
            table = torch.where(is_known[:, None], table, sums / total.clamp(min=1e-9))
        table = torch.where(has_vector[:, None], table, new[: self.items])
        return torch.cat([table, padding])


def item_tables(model: SessionModel) -> set[str]:
    """The names of the weights that have a row for each item."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, ItemTable)
    }


def inherited_settings(run: Run, spec: ModelSpec) -> tuple[Any, Settings]:
    """The settings of a run that a warm start has by default, with a learning rate that falls from
    a tenth of the run's. Those of a run that was itself a warm start stay as they are."""
    defaults = Settings(**spec.settings)
    (training,) = split_settings(run.config.get("training", {}), defaults)
    if STARTED_FROM not in run.config:
        training = replace(
            training,
            protocol="paper",
            schedule="cosine",
            warmup=0.0,
            learning_rate=RATE_OF_A_WARM_START * training.learning_rate,
        )
    return run.model.config, training


def open_start(
    start_from: str | Path | Run | None, model: str | ModelSpec | None, encoding: Any
) -> Run | None:
    """The run to start from. A model's or an encoding's own code is run only if it was named."""
    if start_from is None or isinstance(start_from, Run):
        return start_from
    config = read_config(Path(start_from))
    own_model = None if config["model"] in MODELS else model
    recorded = config.get("encoding")
    if not isinstance(recorded, str) or not is_own(recorded):
        return load_run(start_from, own_model)
    if not isinstance(encoding, OwnEncoding):
        raise InputError(
            f"{start_from} has an encoding that is not posrec's own, {recorded}; if you trust "
            "that code, name it with --set encoding=FILE.py:NAME, or in Python with encoding=NAME"
        )
    return load_run(start_from, own_model, encoding)


def check_same_model(run: Run, name: str) -> None:
    recorded = run.config["model"]
    if recorded != name:
        raise InputError(
            f"{run.path} holds {recorded}, not {name}; start from a run of the same model, or "
            "leave --model out"
        )
    if not isinstance(run.model, SessionModel):
        raise InputError(
            f"{name} counts its sessions anew and has no weights to start from; leave --from out"
        )
