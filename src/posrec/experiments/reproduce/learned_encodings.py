"""What the runs of an experiment learned as positional encodings, drawn by the report and told in numbers."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from posrec.encodings.schemes import make_encoding
from posrec.experiments.encoding_figures import LONG, SHORT, alike
from posrec.experiments.reproduce.grid import FIGURES, cells_of
from posrec.experiments.reproduce.run import QUICK, Results
from posrec.experiments.trained_encoding import TrainedEncoding


def learned(results: Results) -> Iterator[tuple[str, TrainedEncoding]]:
    """(heading, table) of LPE and LDPE in PosRec on each dataset, seed 0, as far as they are there."""
    everywhere = QUICK if results.quick else {}
    for dataset in results.datasets:
        for row in FIGURES.rows:
            outcome = results.outcomes.get(cells_of(row, dataset, 1, everywhere)[0].name)
            table = outcome.encoding() if outcome and not outcome.error else None
            if table is not None:
                name = str(row.settings["encoding"])
                scheme = make_encoding(name, d=table.shape[1], max_length=table.shape[0])
                scheme.load_state_dict({"table": torch.from_numpy(table)})
                heading = f"{row.label} learned on {results.title(dataset)}"
                yield heading, TrainedEncoding(Path(f"{dataset}, seed 0"), name, scheme, *table.shape)


def described(results: Results) -> list[str]:
    """How alike the same positions of two lengths are, a sentence a table."""
    said = []
    for heading, one in learned(results):
        first, last, other = diagonals(one.scheme)
        said.append(
            f"{heading}: {first:.2f} for the same position from the first click, {last:.2f} for the same from the "
            f"last, {other:.2f} for others."
        )
    return said


def diagonals(scheme: nn.Module) -> tuple[float, float, float]:
    """Mean scaled dot products of positions of lengths 10 and 20: the same from the first click, from the last, others.

    >>> one, two = (diagonals(make_encoding(name, 100, LONG)) for name in ("spe", "dpe"))
    >>> [round(value, 2) for value in one + two]
    [1.0, 0.13, 0.37, 1.0, 1.0, 0.58]
    """
    values = alike(scheme, SHORT, LONG)
    place = torch.arange(SHORT)
    same = torch.zeros_like(values, dtype=torch.bool)
    same[place, place] = same[place, place + LONG - SHORT] = True
    return (
        float(values[place, place].mean()),
        float(values[place, place + LONG - SHORT].mean()),
        float(values[~same].mean()),
    )
