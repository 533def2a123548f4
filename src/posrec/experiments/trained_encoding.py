"""The learned encoding of a trained run, read from its folder without building the model around it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posrec.encodings.schemes import LEARNED, make_encoding
from posrec.errors import InputError


@dataclass(frozen=True)
class TrainedEncoding:
    run: Path
    name: str
    scheme: nn.Module
    rows: int
    d: int


def load_trained_encoding(run: Path) -> TrainedEncoding:
    """Read `encoding` from the run's config.json and its table from model.safetensors."""
    if not run.is_dir():
        raise InputError(f"{run}: there is no such run folder; give one that `posrec train` wrote")
    name = read_name(run / "config.json")
    table = read_table(run / "model.safetensors")
    rows, d = table.shape
    scheme = make_encoding(name, d=d, max_length=rows)
    scheme.load_state_dict({"table": table})
    return TrainedEncoding(run, name, scheme, rows, d)


def read_name(path: Path) -> str:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: the file is missing, so this is not a run folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    names = set(values_of("encoding", config))
    if len(names) != 1:
        raise InputError(f'{path}: it must name one "encoding", found {sorted(names) or "none"}')
    name = names.pop()
    if name not in LEARNED:
        raise InputError(f"{path}: encoding {name!r} has no learned table to examine; learned are: {' '.join(LEARNED)}")
    return name


def values_of(key: str, config: Any) -> Iterator[str]:
    """Every value under `key`, at any depth: the settings of a model may stand in an object of their own."""
    if isinstance(config, dict):
        for name, value in config.items():
            if name == key and not isinstance(value, dict | list):
                yield str(value)
            else:
                yield from values_of(key, value)


def read_table(path: Path) -> torch.Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as weights:
            keys = [key for key in weights.keys() if f".{key}".endswith(".encoding.table")]  # noqa: SIM118
            if len(keys) != 1:
                raise InputError(f"{path}: it must hold one weight `encoding.table`, found {keys or 'none'}")
            table: torch.Tensor = weights.get_tensor(keys[0])
    except FileNotFoundError:
        raise InputError(f"{path}: the file is missing; did the training finish?") from None
    except SafetensorError as error:
        raise InputError(f"{path}: not readable as safetensors ({error})") from None
    if table.dim() != 2 or table.shape[0] < 2 or table.shape[1] < 2:
        raise InputError(f"{path}: {keys[0]} has shape {tuple(table.shape)}, expected at least (2, 2)")
    if not torch.isfinite(table).all():
        raise InputError(f"{path}: {keys[0]} holds values that are not finite; the training diverged")
    return table
