"""GRU4Rec beside its authors' code, and settings of the baselines on the validation parts.

    python -m benchmarks.quality.baselines authors prepared/demo/data --code FOLDER --epochs 2

FOLDER is a copy of github.com/hidasib/GRU4Rec_PyTorch_Official; it needs pandas. `choices` trains
what the papers leave open. All read the sessions before the validation part and rank that part, or
with `--rank test` the test part. A training with a row in results/baselines.json is not run again.
"""

import argparse
import multiprocessing
import runpy
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.results import parser_for, write_row
from benchmarks.peers.measure import dataset_name
from benchmarks.quality.gru4rec_authors import CHANGES, SHUFFLED, train_theirs
from posrec.data.dataset import PreparedDataset, SessionDataset, load
from posrec.evaluation.metrics import rank_metrics
from posrec.fitting.fit import fit_run
from posrec.io import read_json
from posrec.progress import SilentProgress

KEY = (
    "dataset",
    "ranked",
    "model",
    "way",
    "settings",
    "epochs",
    "share",
    "seed",
)
METRICS = ("recall@10", "mrr@10", "recall@20", "mrr@20")
Settings = dict[str, Any]


def combinations(**values: tuple[Any, ...]) -> dict[str, Settings]:
    """Every combination of the values, by a name."""
    chosen = [
        dict(zip(values, each, strict=True)) for each in product(*values.values())
    ]
    return {", ".join(f"{key}={each[key]}" for key in each): each for each in chosen}


# What the papers leave open, and values of theirs that were replaced.
CHOICES: dict[str, dict[str, Settings]] = {
    "sasrec": combinations(scaled=(False, True), spread=(0.0, 0.02, 0.05)),
    "narm": combinations(spread=(0.0, 0.02, 0.05)),
    "gru4rec": combinations(spread=(0.0, 0.05)),
    "posrec": combinations(feed_forward=(1, 2, 4)),
    "fgnn": combinations(layers=(1, 3), from_last=(True, False)),
    "stamp": combinations(dropout=(0.0, 0.1, 0.2, 0.3)),
}
# The defaults of the authors' code, in which files of settings change some of them.
DEFAULTS: Settings = {
    "loss": "cross-entropy",
    "layers": [100],
    "batch_size": 64,
    "dropout_p_embed": 0.0,
    "dropout_p_hidden": 0.0,
    "learning_rate": 0.05,
    "momentum": 0.0,
    "n_sample": 2048,
    "sample_alpha": 0.5,
    "bpreg": 1.0,
}
# Their settings for a large part of Yoochoose and for Diginetica.
PARAMFILES = {
    "cross-entropy": "yoochoose_xe_shared_best",
    "bpr-max": "diginetica_bprmax_shared_best",
}
# What could make a difference, one at a time: in the authors' code, and in posrec.
ADAM = {"optimizer": "adam", "learning_rate": 0.002}
CHANGED = {change: {"change": change} for change in (SHUFFLED, *CHANGES)}
THEIRS: dict[str, dict[str, Settings]] = {
    "default": {SHUFFLED: CHANGED[SHUFFLED]},
    "cross-entropy": CHANGED | {"no logq": {"logq": 0.0}},
    "bpr-max": CHANGED
    | {"no elu": {"elu_param": 0.0}, "no momentum": {"momentum": 0.0}},
}
# `model`: another one than posrec's.
DROPPED = {"model": "benchmarks.peers.variants.gru4rec_of_authors:SPEC"}
OURS: dict[str, dict[str, Settings]] = {
    "default": {
        "Adam 0.001": ADAM | {"learning_rate": 0.001},
        "Adam 0.002": ADAM,
        "whole gradient": {"truncated": False},
    },
    "cross-entropy": {
        "dropout of every state": DROPPED,
        "no dropout": {"dropout": 0.0},
        "sampled": {"loss": "sampled"},
        "Adam 0.002": ADAM,
    },
    "bpr-max": {
        "dropout of every state": DROPPED,
        "no dropout": {"dropout": 0.0},
        "full softmax": {"loss": "full"},
        "recency 1": {"recency": 1.0},
        "Adam 0.002": ADAM,
    },
}


def main() -> None:
    parser = parser_for(__doc__, "results/baselines.json")
    parser.add_argument("table", choices=("authors", "choices"))
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--code", type=Path, help="the folder of the authors' code")
    parser.add_argument("--rank", choices=("validation", "test"), default="validation")
    parser.add_argument("--models", nargs="+", help="by default all of the table")
    parser.add_argument("--ways", nargs="+", help="by default all")
    parser.add_argument("--epochs", type=int, default=5, help="of the table `authors`")
    parser.add_argument("--width", type=int, help="in place of that of the paramfiles")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the sessions: the latest ones"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of a training")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    options = parser.parse_args()
    if options.table == "authors" and options.code is None:
        parser.error("the table authors needs --code FOLDER")
    torch.set_num_threads(options.threads)  # what the rows record
    rows = read_json(options.out) if options.out.exists() else []
    done = [key_of(row) for row in rows if "error" not in row]
    jobs = [job for job in requested_jobs(options) if key_of(job) not in done]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn) as pool:
        for row in as_completed(pool.submit(outcome, job, options) for job in jobs):
            write_row(options.out, row.result(), KEY)


def key_of(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in KEY]


def requested_jobs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What identifies the row of each training, and its settings: first those of one seed."""
    make = choice_jobs if options.table == "choices" else author_jobs
    for seed, folder in product(range(options.seeds), options.datasets):
        for model, way, epochs, settings in make(options):
            if options.models and model not in options.models:
                continue
            if options.ways and way not in options.ways:
                continue
            yield {
                "folder": str(folder),
                "dataset": dataset_name(folder),
                "ranked": options.rank,
                "model": model,
                "way": way,
                "settings": settings,
                "epochs": epochs,
                "share": options.share,
                "seed": seed,
            }


# model, way, epochs (None: the model's own), settings
Ways = Iterator[tuple[str, str, int | None, Settings]]


def choice_jobs(options: argparse.Namespace) -> Ways:
    for model, ways in CHOICES.items():
        for way, settings in ways.items():
            yield model, way, None, settings


def author_jobs(options: argparse.Namespace) -> Ways:
    for way, changes in OURS.items():
        params = DEFAULTS
        if way in PARAMFILES:
            path = options.code / "paramfiles" / f"{PARAMFILES[way]}.py"
            params = dict(runpy.run_path(str(path))["gru4rec_params"])
        if options.width is not None:
            params = params | {"layers": [options.width]}
        both = {
            "authors": (params, THEIRS[way]),
            "gru4rec": (as_theirs(params), changes),
        }
        for model, (settings, changed) in both.items():
            yield model, way, options.epochs, settings
            for change, values in changed.items():
                yield model, f"{way}, {change}", options.epochs, settings | values


def as_theirs(params: Settings) -> Settings:
    """The settings of the authors' code in the names of posrec's."""
    (width,) = params["layers"]
    loss: Settings = {"loss": "full"}
    if params["loss"] == "bpr-max":
        loss = {
            "loss": "bpr-max",
            "negatives": params["n_sample"],
            "sample_alpha": params["sample_alpha"],
            "score_l2": params["bpreg"],
        }
    return {
        **loss,
        "optimizer": "adagrad",
        # Momentum makes a step about this much longer.
        "learning_rate": round(params["learning_rate"] / (1 - params["momentum"]), 4),
        "decay": 1.0,
        "l2": 0.0,
        "batch_size": params["batch_size"],
        "d": width,
        "hidden": width,
        "embedding_dropout": params["dropout_p_embed"],
        "dropout": params["dropout_p_hidden"],
    }


def outcome(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The row of a training: its metrics x100, or the error."""
    torch.set_num_threads(options.threads)
    data = load(Path(job["folder"]))
    began = time.perf_counter()
    train = partial(train_theirs, options.code) if job["model"] == "authors" else ours
    row = {name: value for name, value in job.items() if name != "folder"}
    row["device"] = options.device
    try:
        ranks = train(job, with_parts(data, job), options.device)
    except Exception as error:  # the other trainings go on
        return row | {"error": f"{type(error).__name__}: {error}"[:300]}
    metrics = rank_metrics(ranks)
    return row | {
        "seconds": round(time.perf_counter() - began, 1),
        "metrics": {name: round(100 * metrics[name], 2) for name in METRICS},
    }


def with_parts(data: PreparedDataset, job: dict[str, Any]) -> PreparedDataset:
    """The dataset with the sessions to train on and those to rank in place of its two parts."""
    sessions = data.fitting.sessions
    part = data.train.part(round(sessions * (1 - job["share"])), sessions)
    items = part.items[part.offsets[0] : part.offsets[-1]]
    train = SessionDataset(items, part.offsets - part.offsets[0], part.times)
    test = data.validation if job["ranked"] == "validation" else data.test
    return replace(data, train=train, test=test)


def ours(job: dict[str, Any], data: PreparedDataset, device: str) -> Tensor:
    """The ranks of a model of posrec."""
    settings = {**job["settings"], "protocol": "paper", "seed": job["seed"]}
    if job["epochs"] is not None:
        settings["epochs"] = job["epochs"]
    model = settings.pop("model", job["model"])
    with tempfile.TemporaryDirectory() as folder:
        _, evaluation = fit_run(
            data,
            model,
            Path(folder) / "run",
            settings,
            device,
            progress=SilentProgress(),
            resumable=False,
            export=False,
        )
    return evaluation.ranks


if __name__ == "__main__":
    main()
