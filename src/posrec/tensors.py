"""Tensors in safetensors files, written whole; the weights of a run among them."""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from posrec.errors import InputError

WEIGHTS = "model.safetensors"


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
