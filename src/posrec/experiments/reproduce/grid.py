"""The paper's experiments as plain data: the rows of each table, and the jobs that fill them.

Settings equal to a model's defaults are left out of a job, so that experiments share trainings: the
PosRec of the overall table is the LDPE of the comparison of encodings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from posrec.encodings import ENCODINGS
from posrec.errors import InputError
from posrec.experiments.reproduce.jobs import Job
from posrec.experiments.reproduce.paper import DATASETS, dataset_of
from posrec.models.registry import MODELS
from posrec.training.settings import Settings

# For trained models other than PosRec; counting models have no randomness.
OTHERS_SEEDS = 3

# Settings of a model on a dataset of the paper, in addition to those of the row.
BY_DATASET: dict[str, dict[str, dict[str, Any]]] = {
    "posrec": {
        name: {"lambda2": dataset["best_lambda2"]} for name, dataset in DATASETS.items()
    },
}


@dataclass(frozen=True)
class TableRow:
    """A row of a table. `extra`: not in the paper, added for comparison."""

    label: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    extra: bool = False


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    about: str
    rows: tuple[TableRow, ...]


OVERALL = Experiment(
    "overall",
    "Overall performance",
    "Section 5.2: PosRec and the twelve baselines, each with settings of its own (docs/models.md).",
    (
        TableRow("POP", "pop"),
        TableRow("S-POP", "spop"),
        TableRow("Item-KNN", "itemknn"),
        TableRow("BPR-MF", "bprmf"),
        TableRow("FPMC", "fpmc"),
        TableRow("GRU4REC", "gru4rec"),
        TableRow("NARM", "narm"),
        TableRow("STAMP", "stamp"),
        TableRow("SR-GNN", "srgnn"),
        TableRow("FGNN", "fgnn"),
        TableRow("GC-SAN", "gcsan"),
        TableRow("SASRec", "sasrec"),
        TableRow("PosRec", "posrec"),
        TableRow("VSKNN", "vsknn", extra=True),
        TableRow("STAN", "stan", extra=True),
    ),
)
ENCODINGS_IN_POSREC = Experiment(
    "encodings",
    "Positional encodings in PosRec",
    "Section 5.3: every encoding in place of LDPE, and none. The paper shows bars without numbers.",
    (
        TableRow("none", "posrec", {"encoding": "none"}),
        *(
            TableRow(name.upper(), "posrec", {"encoding": name}, extra=name == "rpe")
            for name in ENCODINGS
            if name != "none"
        ),
    ),
)
PLUG_IN = Experiment(
    "plug-in",
    "LDPE in other models",
    "Section 5.3: LDPE added to STAMP, which has no encoding, and put in the place of "
    "SASRec's LPE.",
    (
        TableRow("STAMP", "stamp"),
        TableRow("STAMP + LDPE", "stamp", {"encoding": "ldpe"}),
        TableRow("SASRec", "sasrec"),
        TableRow("SASRec + LDPE", "sasrec", {"encoding": "ldpe"}),
    ),
)
ANCHORS = Experiment(
    "anchors",
    "Anchor nodes",
    "Section 5.4: the anchor edges of PosRec's graph layer, in it and in other graph models. "
    "The paper shows bars without numbers.",
    (
        TableRow("SR-GNN", "srgnn", {"anchors": False}),
        TableRow("SR-GNN + anchors", "srgnn", {"anchors": True}),
        TableRow("FGNN", "fgnn", {"anchors": False}),
        TableRow("FGNN + anchors", "fgnn", {"anchors": True}),
        TableRow("GC-SAN", "gcsan", {"anchors": False}),
        TableRow("GC-SAN + anchors", "gcsan", {"anchors": True}),
        TableRow("PosRec-ANC", "posrec", {"anchors": False}),
        TableRow("PosRec", "posrec", {"anchors": True}),
    ),
)
SENSITIVITY = Experiment(
    "sensitivity",
    "Weight of the initial intention",
    "Section 5.6: lambda2 in PosRec, with lambda0 = lambda1 = 1. The paper shows curves "
    "without numbers.",
    tuple(
        TableRow(f"λ2 = {value:g}", "posrec", {"lambda2": value})
        for value in (0.25, 0.5, 1.0, 2.0)
    ),
)
FIGURES = Experiment(
    "figures",
    "What encodings look like",
    "Section 5.5: fixed encodings, and the tables that PosRec learned (seed 0).\n"
    "The paper says of learned ones that LPE tells positions from the first click alone, "
    "most of all the earliest, and LDPE those from both ends, from the last click more clearly.",
    (
        TableRow("LPE", "posrec", {"encoding": "lpe"}),
        TableRow("LDPE", "posrec", {"encoding": "ldpe"}),
    ),
)
ALL = (OVERALL, ENCODINGS_IN_POSREC, PLUG_IN, ANCHORS, SENSITIVITY, FIGURES)
EXPERIMENTS = {experiment.name: experiment for experiment in ALL}


def choose_experiments(name: str) -> list[Experiment]:
    if name == "all":
        return list(ALL)
    if name not in EXPERIMENTS:
        names = ", ".join(EXPERIMENTS)
        raise InputError(
            f"experiment {name!r} is not known; choose one of {names} or all"
        )
    return [EXPERIMENTS[name]]


def seeds_of(model: str, seeds: int) -> int:
    """PosRec gets all of them, other trained models up to three, counting models one."""
    if not MODELS[model].is_trained:
        return 1
    return seeds if model == "posrec" else min(OTHERS_SEEDS, seeds)


def jobs_of(
    row: TableRow,
    dataset: str,
    seeds: int,
    shared_settings: Mapping[str, Any] | None = None,
) -> list[Job]:
    """One job per seed; `shared_settings` are for models that have them."""
    spec = MODELS[row.model]
    defaults = asdict(spec.config())
    if spec.is_trained:
        defaults |= asdict(Settings(**spec.settings))
    shared = {
        key: value for key, value in (shared_settings or {}).items() if key in defaults
    }
    by_dataset = BY_DATASET.get(row.model, {}).get(dataset_of(dataset) or "", {})
    chosen = sorted({**by_dataset, **shared, **row.settings}.items())
    settings = {key: value for key, value in chosen if defaults[key] != value}
    count = seeds_of(row.model, seeds)
    return [Job(dataset, row.model, settings, seed) for seed in range(count)]


def all_jobs(
    experiments: Sequence[Experiment],
    datasets: Sequence[str],
    seeds: int,
    shared_settings: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Each job once, in rounds: seed 0 of every row, then the seeds of all models, then the others.

    So an interrupted run has whole tables early. Within a round the seeds of a row stand together:
    on a GPU they share what was compiled for the first.
    """
    every: list[Job] = []
    for dataset, experiment in product(datasets, experiments):
        count = 1 if experiment is FIGURES else seeds
        for row in experiment.rows:
            every += jobs_of(row, dataset, count, shared_settings)
    jobs: dict[str, Job] = {}
    for seeds_of_round in (1, OTHERS_SEEDS, seeds):
        jobs |= {job.name: job for job in every if job.seed < seeds_of_round}
    return list(jobs.values())
