"""Section 3 as rows: what the definitions give for each encoding, and what the paper says."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posrec.encodings.awareness import Analysis, analyse, examined_names
from posrec.encodings.schemes import LEARNED, make_encoding
from posrec.encodings.theory import PAPER, differences, verdicts
from posrec.errors import InputError
from posrec.io import RUN, WEIGHTS
from posrec.progress import Progress, SilentProgress
from posrec.runs.folder import open_finished

EVIDENCE = ("forward", "backward", "collision", "collision_within_length")


@dataclass(frozen=True)
class TrainedEncoding:
    """The learned encoding of a trained run, without the model around it."""

    run: Path
    name: str
    table: Tensor  # [rows, d]

    @property
    def scheme(self) -> nn.Module:
        rows, d = self.table.shape
        scheme = make_encoding(self.name, d, rows)
        scheme.load_state_dict({"table": self.table})
        return scheme


def load_trained_encoding(run: Path) -> TrainedEncoding:
    reader, config = open_finished(run)
    name = config.get("encoding")
    if name not in LEARNED:
        problem = f"has encoding {name!r}, which has no learned table"
        if name is None:
            problem = "names no encoding"
        raise InputError(f"{run / RUN} {problem}; learned are: {' '.join(LEARNED)}")
    weights, _ = reader.tensors(WEIGHTS)
    tables = encoding_tables(weights)
    if len(tables) != 1:
        problem = (
            f"it must hold one weight `encoding.table`, found {list(tables) or 'none'}"
        )
        raise InputError(f"{run / WEIGHTS}: {problem}")
    ((weight, table),) = tables.items()
    problem = ""
    if table.dim() != 2 or min(table.shape) < 2:
        problem = f"has shape {tuple(table.shape)}, expected at least (2, 2)"
    elif not torch.isfinite(table).all():
        problem = "holds values that are not finite; the training diverged"
    if problem:
        raise InputError(f"{run / WEIGHTS}: {weight} {problem}")
    return TrainedEncoding(run, name, table)


def encoding_tables(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in weights.items()
        if f".{name}".endswith(".encoding.table")
    }


@dataclass(frozen=True)
class EncodingRow:
    """`label` is the name of a scheme, or the folder of a run with the scheme `encoding`."""

    label: str
    encoding: str
    analysis: Analysis


def examine(
    max_length: int,
    d: int,
    trained: Sequence[TrainedEncoding] = (),
    progress: Progress | None = None,
) -> list[EncodingRow]:
    """Examine every scheme up to max_length, then each trained run up to its table's rows."""
    progress = progress or SilentProgress()
    names = examined_names()
    total = len(names) + len(trained)
    rows: list[EncodingRow] = []
    for name in names:
        progress.update("Examining", len(rows), total, name)
        rows.append(EncodingRow(name, name, analyse(name, max_length, d)))
    for encoding in trained:
        label = str(encoding.run)
        progress.update("Examining", len(rows), total, label)
        analysis = analyse(encoding.scheme, *encoding.table.shape)
        rows.append(EncodingRow(label, encoding.name, analysis))
    return rows


def as_json(row: EncodingRow) -> dict[str, Any]:
    analysis = row.analysis
    paper = PAPER[row.encoding]
    return {
        "encoding": row.encoding,
        **verdicts(analysis),
        "linear_residual": analysis.linear.residual,
        "linear_trivial": analysis.linear.trivial,
        "paper": asdict(paper),
        "differs": list(differences(analysis, paper)),
        "max_length": analysis.max_length,
        "d": analysis.d,
        "evidence": {name: asdict(analysis)[name] for name in EVIDENCE},
    }
