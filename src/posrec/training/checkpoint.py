"""Everything a run needs to go on as if nothing had happened, in one safetensors file, written whole."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from posrec.errors import InputError

STATE = "state.safetensors"


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write beside `path`, flush, rename: a crash leaves the old file or the new one."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, unfinished, metadata={"about": json.dumps(about)})
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["about"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} can't be read ({error}); it is damaged or no file of posrec's") from None


def save_state(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    tensors["random"] = torch.get_rng_state()
    save_tensors(run / STATE, tensors, progress)


def load_state(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put model, optimiser and random numbers back where they were; gives the progress that was saved."""
    tensors, progress = load_tensors(run / STATE)
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    for name, parameter in model.named_parameters():
        device = parameter.device
        kept = {key: tensors.get(f"optimizer.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
        for key, value in kept.items():
            if value is not None:
                # Fused Adam keeps its step count beside the weights.
                optimizer.state[parameter][key] = value.to(device)
    torch.set_rng_state(tensors["random"])
    return progress
