"""Checkpoints: everything that a resumed run needs, in one safetensors file. On a CPU it ends with the same weights.

Where several processes train together, `sharded_checkpoint.py` writes and reads the same file.
"""

from pathlib import Path
from typing import Any

import torch

from posrec.io import STATE, WEIGHTS, Continuation, load_tensors, save_tensors
from posrec.models.base import SessionModel
from posrec.nn.sharding import world_of
from posrec.training.sharded_checkpoint import (
    load_sharded_state,
    save_sharded_continuation,
    save_sharded_state,
    save_sharded_weights,
)


def save_weights(run: Path, model: SessionModel, kept: Continuation) -> None:
    """Write model.safetensors, and continuation.safetensors for a training that starts from them."""
    world = world_of(model)
    if world is None:
        save_tensors(run / WEIGHTS, model.saved_weights(), {})
        kept.save(run)
    else:
        save_sharded_weights(run, model, world)
        save_sharded_continuation(run, model, kept, world)


def has_state(run: Path, model: SessionModel) -> bool:
    """Whether the run has a checkpoint."""
    world, exists = world_of(model), (run / STATE).exists()
    return exists if world is None else bool(world.number(exists, next(model.parameters()).device))


def save_state(run: Path, model: SessionModel, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    world = world_of(model)
    if world is not None:
        return save_sharded_state(run, model, optimizer, progress, world)
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    tensors["random"] = torch.get_rng_state()
    save_tensors(run / STATE, tensors, progress)


def load_state(run: Path, model: SessionModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore the model, the optimiser and the random generator; returns the progress that was saved."""
    world = world_of(model)
    if world is not None:
        return load_sharded_state(run, model, optimizer, world)
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
