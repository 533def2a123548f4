"""Checkpoints: everything that a resumed run needs, in one safetensors file. On a CPU it ends with
the same weights."""

from pathlib import Path
from typing import Any

import torch

from posrec.errors import InputError, first_line
from posrec.io import STATE, load_tensors, save_tensors
from posrec.models.base import SessionModel
from posrec.training.optimizers import Optimizer


def save_state(
    run: Path,
    model: SessionModel,
    optimizer: Optimizer,
    progress: dict[str, Any],
) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    tensors["random"] = torch.get_rng_state()
    save_tensors(run / STATE, tensors, progress)


@torch.no_grad()
def load_state(run: Path, model: SessionModel, optimizer: Optimizer) -> dict[str, Any]:
    """Restore the model, the optimiser and the random generator; returns the progress that was
    saved."""
    tensors, progress = load_tensors(run / STATE)
    try:
        weights = {name: tensors[f"model.{name}"] for name in model.state_dict()}
        model.load_state_dict(weights)
        for name, parameter in model.named_parameters():
            if f"optimizer.{optimizer.squares}.{name}" in tensors:
                state = optimizer.first_state(parameter)
                for key, value in state.items():
                    value.copy_(tensors[f"optimizer.{key}.{name}"])
                optimizer.state[parameter] = state
        torch.set_rng_state(tensors["random"])
    except (KeyError, RuntimeError) as error:
        raise InputError(
            f"{run / STATE} does not fit ({first_line(error)}); it is damaged or of another model"
        ) from None
    return progress
