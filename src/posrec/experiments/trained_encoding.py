"""The learned encoding of a trained run, read from its folder without building the model around it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from posrec.encodings.schemes import LEARNED, make_encoding
from posrec.errors import InputError
from posrec.io import RUN, WEIGHTS, load_tensors
from posrec.run import read_config


@dataclass(frozen=True)
class TrainedEncoding:
    run: Path
    name: str
    scheme: nn.Module
    rows: int
    d: int


def load_trained_encoding(run: Path) -> TrainedEncoding:
    """Take `encoding` from the run's config and its table from the weights."""
    name = read_config(run).get("encoding")
    if name not in LEARNED:
        found = "names no encoding" if name is None else f"has encoding {name!r}, which has no learned table"
        raise InputError(f"{run / RUN} {found}; learned are: {' '.join(LEARNED)}")
    table = find_table(run / WEIGHTS)
    rows, d = table.shape
    scheme = make_encoding(name, d=d, max_length=rows)
    scheme.load_state_dict({"table": table})
    return TrainedEncoding(run, name, scheme, rows, d)


def find_table(path: Path) -> torch.Tensor:
    """The one table of an encoding among a model's weights, wherever in the model it stands."""
    tensors, _ = load_tensors(path)
    tables = {name: tensor for name, tensor in tensors.items() if f".{name}".endswith(".encoding.table")}
    if len(tables) != 1:
        raise InputError(f"{path}: it must hold one weight `encoding.table`, found {list(tables) or 'none'}")
    ((name, table),) = tables.items()
    if table.dim() != 2 or table.shape[0] < 2 or table.shape[1] < 2:
        raise InputError(f"{path}: {name} has shape {tuple(table.shape)}, expected at least (2, 2)")
    if not torch.isfinite(table).all():
        raise InputError(f"{path}: {name} holds values that are not finite; the training diverged")
    return table
