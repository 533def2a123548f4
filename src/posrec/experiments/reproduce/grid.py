"""The paper's experiments as plain data: the rows of each table, and the cells that fill them.

Settings that a model has anyway are left out of a cell, so that experiments which ask for the same thing share it: the
PosRec of the overall table is the LDPE of the comparison of encodings, and one of the four points of lambda2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from posrec.encodings import ENCODINGS
from posrec.errors import InputError
from posrec.experiments.reproduce.jobs import Cell
from posrec.experiments.reproduce.paper import BEST_LAMBDA2, dataset_of
from posrec.models.registry import MODELS
from posrec.training.settings import Settings

WITHOUT_ANCHORS = "PosRec-ANC"  # the paper's name
OTHERS_SEEDS = 3  # of models that are not PosRec's; counting models have nothing to draw

# What a model is given on a dataset of the paper beside the row's own settings.
BY_DATASET: dict[str, dict[str, dict[str, Any]]] = {
    "posrec": {name: {"lambda2": best} for name, best in BEST_LAMBDA2.items()},
    "stamp": {"diginetica": {"dropout": 0.2}},  # docs/models_sequence.md
}


@dataclass(frozen=True)
class Row:
    """A line of a table. `extra`: not in the paper, shown beside it."""

    label: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    extra: bool = False


@dataclass(frozen=True)
class Experiment:
    """`about` says what is asked; rows are the same on every dataset."""

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]


OVERALL = Experiment(
    "overall",
    "Overall performance",
    "Section 5.2: PosRec and the twelve baselines, each with settings of its own (docs/models.md).",
    (
        Row("POP", "pop"),
        Row("S-POP", "spop"),
        Row("Item-KNN", "itemknn"),
        Row("BPR-MF", "bprmf"),
        Row("FPMC", "fpmc"),
        Row("GRU4REC", "gru4rec"),
        Row("NARM", "narm"),
        Row("STAMP", "stamp"),
        Row("SR-GNN", "srgnn"),
        Row("FGNN", "fgnn"),
        Row("GC-SAN", "gcsan"),
        Row("SASRec", "sasrec"),
        Row("PosRec", "posrec"),
        Row("VSKNN", "vsknn", extra=True),
        Row("STAN", "stan", extra=True),
    ),
)
ENCODINGS_IN_POSREC = Experiment(
    "encodings",
    "Positional encodings in PosRec",
    "Section 5.3: every encoding in place of LDPE, and none. The paper shows bars without numbers.",
    tuple(Row(name.upper() if name != "none" else "none", "posrec", {"encoding": name}, extra=name == "rpe")
          for name in ENCODINGS),
)  # fmt: skip
PLUG_IN = Experiment(
    "plug-in",
    "LDPE in other models",
    "Section 5.3: LDPE added to STAMP, which has no encoding, and put in the place of SASRec's LPE.",
    (
        Row("STAMP", "stamp"),
        Row("STAMP + LDPE", "stamp", {"encoding": "ldpe"}),
        Row("SASRec", "sasrec"),
        Row("SASRec + LDPE", "sasrec", {"encoding": "ldpe"}),
    ),
)
ANCHORS = Experiment(
    "anchors",
    "Anchor nodes",
    "Section 5.4: the anchor edges of PosRec's graph layer, in it and in other graph models. The paper shows bars "
    "without numbers.",
    tuple(
        Row(label, model, {"anchors": anchors})
        for model, *labels in (
            ("srgnn", "SR-GNN", "SR-GNN + anchors"),
            ("fgnn", "FGNN", "FGNN + anchors"),
            ("gcsan", "GC-SAN", "GC-SAN + anchors"),
            ("posrec", WITHOUT_ANCHORS, "PosRec"),
        )
        for anchors, label in zip((False, True), labels, strict=True)
    ),
)
SENSITIVITY = Experiment(
    "sensitivity",
    "Weight of the initial intention",
    "Section 5.6: lambda2 in PosRec, with lambda0 = lambda1 = 1. The paper shows curves without numbers.",
    tuple(Row(f"λ2 = {value:g}", "posrec", {"lambda2": value}) for value in (0.25, 0.5, 1.0, 2.0)),
)
FIGURES = Experiment(
    "figures",
    "What encodings look like",
    "Section 5.5: fixed encodings, and the tables that PosRec learned (seed 0). The paper says of learned ones that "
    "LPE tells positions from the first click alone, most of all the earliest, and LDPE those from both ends, from the "
    "last click more clearly.",
    (Row("LPE", "posrec", {"encoding": "lpe"}), Row("LDPE", "posrec", {"encoding": "ldpe"})),
)
EXPERIMENTS = {one.name: one for one in (OVERALL, ENCODINGS_IN_POSREC, PLUG_IN, ANCHORS, SENSITIVITY, FIGURES)}


def chosen(name: str) -> list[Experiment]:
    if name != "all" and name not in EXPERIMENTS:
        raise InputError(f"experiment {name!r} is not known; choose one of {', '.join(EXPERIMENTS)} or all")
    return list(EXPERIMENTS.values()) if name == "all" else [EXPERIMENTS[name]]


def seeds_of(model: str, seeds: int) -> int:
    """PosRec and its variants get all of them, other trained models up to three, counting models one."""
    return 1 if not MODELS[model].is_trained else seeds if model == "posrec" else min(OTHERS_SEEDS, seeds)


def cells_of(row: Row, dataset: str, seeds: int, everywhere: Mapping[str, Any] | None = None) -> list[Cell]:
    """A row's cells on the dataset of that folder name, a cell a seed; `everywhere`: for every model that has it."""
    spec = MODELS[row.model]
    usual = asdict(spec.config()) | ({} if not spec.is_trained else asdict(Settings(**spec.settings)))
    shared = {key: value for key, value in (everywhere or {}).items() if key in usual}
    by_dataset = BY_DATASET.get(row.model, {}).get(dataset_of(dataset) or "", {})
    wanted = {**by_dataset, **shared, **row.settings}
    settings = {key: value for key, value in sorted(wanted.items()) if usual[key] != value}
    return [Cell(dataset, row.model, settings, seed) for seed in range(seeds_of(row.model, seeds))]


def all_cells(
    experiments: Sequence[Experiment], datasets: Sequence[str], seeds: int, everywhere: Mapping[str, Any] | None = None
) -> list[Cell]:
    """Each cell once: seed 0 of everything, so that a cut run has whole tables early, then what claims need, then more.

    Within a round the seeds of a row stand together: on a GPU they share what was compiled for the first.
    """
    cells = {
        cell.name: cell
        for dataset in datasets
        for experiment in experiments
        for row in experiment.rows
        for cell in cells_of(row, dataset, 1 if experiment is FIGURES else seeds, everywhere)
    }
    rows = list(dict.fromkeys((cell.dataset, cell.row) for cell in cells.values()))
    place = {row: number for number, row in enumerate(rows)}
    return sorted(cells.values(), key=lambda cell: (round_of(cell.seed), place[cell.dataset, cell.row], cell.seed))


def round_of(seed: int) -> int:
    """0 for the first seed, 1 for those that every trained model gets, 2 for PosRec's others."""
    return 0 if seed == 0 else 1 if seed < OTHERS_SEEDS else 2
