"""Checkpoints: everything that a resumed run needs, in one safetensors file. On a CPU it ends with the same weights."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.io import CONTINUATION, STATE, WEIGHTS, Continuation
from posrec.models.base import SessionModel
from posrec.training.adam import MOMENTS, first_state
from posrec.training.distributed.files import Shards, load_together, names_and_about, save_together
from posrec.training.distributed.rows import tensors_by_rows, world_of


def save_weights(run: Path, model: SessionModel, kept: Continuation) -> None:
    """Write model.safetensors, and continuation.safetensors for a training that starts from them."""
    shards, world = tensors_by_rows(model), world_of(model)
    save_together(run / WEIGHTS, model.saved_weights(), shards, world, {})
    save_together(run / CONTINUATION, kept.moments, shards, world, kept.about())


def load_weights(run: Path, model: SessionModel) -> None:
    """Read the rows of this process into a model that was just built."""
    load_together(run / WEIGHTS, model.state_dict(), tensors_by_rows(model), world_of(model))


def has_state(run: Path, model: SessionModel) -> bool:
    """Whether the run has a checkpoint."""
    exists: bool = world_of(model).of_process((run / STATE).exists(), next(model.parameters()).device)
    return exists


def save_state(run: Path, model: SessionModel, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    world, device = world_of(model), next(model.parameters()).device
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    random = world.gathered(torch.get_rng_state().to(device)[None])
    tensors |= {random_name(rank): random[rank] for rank in range(world.size)}
    save_together(run / STATE, tensors, state_shards(model), world, progress)


def load_state(run: Path, model: SessionModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore the model, the optimiser and the random generator; returns the progress that was saved."""
    world, device = world_of(model), next(model.parameters()).device
    names, progress = names_and_about(run / STATE, world, device)
    tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if f"optimizer.step.{name}" in names:
            optimizer.state[parameter] = first_state(parameter)
            tensors |= {f"optimizer.{key}.{name}": value for key, value in optimizer.state[parameter].items()}
    size = len(torch.get_rng_state())
    ranks = [rank for rank in range(world.size) if random_name(rank) in names]
    tensors |= {random_name(rank): torch.empty(size, dtype=torch.uint8, device=device) for rank in ranks}
    load_together(run / STATE, tensors, state_shards(model), world)
    if world.rank in ranks:
        torch.set_rng_state(tensors[random_name(world.rank)].cpu())
    return progress


def state_shards(model: SessionModel) -> Shards:
    """The names in a checkpoint of the tensors of which a process holds some rows."""
    prefixes = ("model", *(f"optimizer.{key}" for key in MOMENTS))
    return {f"{prefix}.{name}": rows for name, rows in tensors_by_rows(model).items() for prefix in prefixes}


def random_name(rank: int) -> str:
    """The state of a process's random generator."""
    return "random" if rank == 0 else f"random.{rank}"
