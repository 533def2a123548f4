"""A trained model from what a run holds: its settings and its weights, neither of which is trusted.

Settings have to be of their declared types, and the weights of the shapes that the settings lead
to, before any memory is allocated for the model: a few bytes of config.json could otherwise ask for
any amount of it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from posrec.config import check_settings
from posrec.errors import InputError, first_line
from posrec.models.base import CountingModel, Model
from posrec.models.registry import ModelSpec


class WrongWeights(InputError):
    """The weights do not fit the settings."""


def restore_model(
    spec: ModelSpec,
    items: int,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> Model:
    """The model for items 1..items with these weights or counts, in evaluation mode. Settings that
    it does not have are ignored, and it takes its defaults for those that are missing."""
    names = {field.name for field in fields(spec.config)}
    settings = {name: value for name, value in settings.items() if name in names}
    try:
        config = spec.config(**settings)
        check_settings(config)
        # Each layer has weights; to build a billion of them takes forever on any device.
        if settings.get("layers", 0) > len(tensors):
            raise WrongWeights(
                f"it holds {len(tensors)} tensors, too few for {settings['layers']} layers"
            )
        check_shapes(spec, items, config, tensors)
        model = spec.build(items, config)
    except InputError:
        raise
    except Exception as error:  # a setting out of its range can raise almost anything
        raise InputError(
            f"the model can't be built with these settings ({error})"
        ) from error
    for name, buffer in model.named_buffers():
        if is_counted(model, buffer) and name in tensors:
            buffer.resize_(tensors[name].shape)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise WrongWeights(first_line(error)) from None
    return model.eval()


def check_shapes(
    spec: ModelSpec, items: int, config: Any, tensors: Mapping[str, Tensor]
) -> None:
    """Build the model on torch's meta device, where tensors have shapes and no memory, and compare
    the shapes."""
    try:
        with torch.device("meta"):
            planned = spec.build(items, config)
    except InputError:
        raise
    except Exception:
        # A user's own model may read values in its constructor, and meta tensors have none.
        return
    for name, tensor in planned.state_dict().items():
        if is_counted(planned, tensor):
            continue
        if name not in tensors:
            raise WrongWeights(f"{name} is missing")
        if tensors[name].shape != tensor.shape:
            raise WrongWeights(
                f"{name} has the shape {list(tensors[name].shape)}, not {list(tensor.shape)}"
            )


def is_counted(model: Model, tensor: Tensor) -> bool:
    """Whether the size of a counting model's buffer depends on the sessions that were counted."""
    return isinstance(model, CountingModel) and tensor.numel() == 0
