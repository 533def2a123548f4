"""Checkpoints: everything that a resumed run needs to end with the same weights, in one safetensors file."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from posrec.io import STATE, load_tensors, save_tensors


def save_state(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    tensors["random"] = torch.get_rng_state()
    save_tensors(run / STATE, tensors, progress)


def load_state(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore the model, the optimiser and the random generator; returns the progress that was saved."""
    tensors, progress = load_tensors(run / STATE)
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    for name, parameter in model.named_parameters():
        device = parameter.device
        saved = {key: tensors.get(f"optimizer.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
        for key, value in saved.items():
            if value is not None:
                # Fused Adam keeps its step count on the device of the weights.
                optimizer.state[parameter][key] = value.to(device)
    torch.set_rng_state(tensors["random"])
    return progress
