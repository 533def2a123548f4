"""Settings of the baselines on the validation parts, and GRU4Rec beside its authors' code.

    python benchmarks/baselines.py choices prepared/diginetica prepared/yoochoose1_64 --work work

Every training reads the sessions before the validation part and ranks that part; with `--rank test`
it ranks the test part. `gru4rec` trains the authors' code, in the folder that --gru4rec names, with
the settings of two of its paramfiles, and posrec's model with the same. A row of
results/baselines.json is written after each training, and a training with a row is not run again.
"""

import argparse
import json
import runpy
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from harness import parser_for, write_row
from peers import dataset_name, outcome, write_sessions
from posrec.data.dataset import PreparedDataset, load
from posrec.io import read_json

KEY = (
    "dataset",
    "ranked",
    "peer",
    "model",
    "setting",
    "settings",
    "epochs_at_most",
    "seed",
)
PARTS = ("validation", "test")


def combinations(**values: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Every combination of the values, as settings."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())
    ]


# What a paper leaves open, or what its value does not work for.
CHOICES: dict[str, list[dict[str, Any]]] = {
    "sasrec": combinations(scaled=(False, True), spread=(0.0, 0.02, 0.05)),
    "narm": combinations(spread=(0.0, 0.02, 0.05)),
    "posrec": combinations(feed_forward=(1, 2, 4)),
    "fgnn": combinations(layers=(1, 3), from_last=(True, False)),
    "stamp": combinations(dropout=(0.0, 0.1, 0.2, 0.3)),
}
# The authors' settings for a large Yoochoose and for Diginetica.
PARAMFILES = {
    "cross-entropy": "yoochoose_xe_shared_best.py",
    "bpr-max": "diginetica_bprmax_shared_best.py",
}


def main() -> None:
    parser = parser_for(__doc__, "results/baselines.json")
    parser.add_argument("table", choices=("choices", "gru4rec"))
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument(
        "--work", type=Path, required=True, help="the folder of unfinished work"
    )
    parser.add_argument("--models", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--peers", nargs="+", default=["gru4rec", "posrec"])
    parser.add_argument("--settings", nargs="+", help="of gru4rec; by default all")
    parser.add_argument("--rank", choices=PARTS, default=PARTS[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--epochs", type=int, default=100, help="the most epochs of a training"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of a training")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--gru4rec", type=Path, help="the folder of its authors' code")
    options = parser.parse_args()
    options.environment = "here"
    if options.table == "gru4rec" and options.gru4rec is None:
        parser.error("gru4rec needs --gru4rec FOLDER, a copy of its authors' code")
    torch.set_num_threads(1)
    datasets = dict(opened(options))
    rows = read_json(options.out) if options.out.exists() else []
    done = [
        json.dumps([row[name] for name in KEY]) for row in rows if "error" not in row
    ]
    missing = [
        job
        for job in requested_jobs(options, list(datasets))
        if json.dumps([job[name] for name in KEY]) not in done
    ]
    writing = threading.Lock()

    def run(numbered: tuple[int, dict[str, Any]]) -> None:
        number, job = numbered
        data, of_dataset = datasets[job["dataset"]]
        row = outcome(job, data, of_dataset, of_dataset.work / f"job-{number}")
        with writing:
            write_row(options.out, row, KEY)

    with ThreadPoolExecutor(options.jobs) as together:
        list(together.map(run, enumerate(missing)))


def opened(
    options: argparse.Namespace,
) -> Iterator[tuple[str, tuple[PreparedDataset, argparse.Namespace]]]:
    """Each dataset by its name, whose test part is the part to rank, and the options for it."""
    for path in options.datasets:
        name = dataset_name(path)
        data = load(path)
        if options.rank == "validation":
            data = replace(data, test=data.validation)
        work = options.work / f"{name}-{options.rank}"
        write_sessions(data, work)
        own = {"dataset": path, "work": work}
        yield name, (data, argparse.Namespace(**vars(options) | own))


def requested_jobs(
    options: argparse.Namespace, datasets: list[str]
) -> Iterator[dict[str, Any]]:
    """What identifies the row of each training, and its settings: first those of one seed."""
    for seed, dataset in product(range(options.seeds), datasets):
        job = {
            "dataset": dataset,
            "ranked": options.rank,
            "device": options.device,
            "epochs_at_most": options.epochs,
            "seed": seed,
        }
        if options.table == "choices":
            for model in options.models:
                for choice in CHOICES[model]:
                    settings = {"protocol": "paper", **choice}
                    named = {"peer": "posrec", "model": model, "setting": "choice"}
                    yield job | named | {"settings": settings}
            continue
        for loss, file in PARAMFILES.items():
            if options.settings and loss not in options.settings:
                continue
            file_path = options.gru4rec / "paramfiles" / file
            theirs = dict(runpy.run_path(str(file_path))["gru4rec_params"])
            settings_of = {"gru4rec": theirs, "posrec": as_theirs(theirs)}
            for peer in options.peers:
                named = {"peer": peer, "model": "gru4rec", "setting": loss}
                yield job | named | {"settings": settings_of[peer]}


def as_theirs(params: dict[str, Any]) -> dict[str, Any]:
    """The settings of the authors' code in the names of posrec's."""
    (width,) = params["layers"]
    return {
        "protocol": "paper",
        "epochs": params["n_epochs"],
        "batch_size": params["batch_size"],
        "decay": 1.0,
        "l2": 0.0,
        "d": width,
        "hidden": width,
        "embedding_dropout": params["dropout_p_embed"],
        "dropout": params["dropout_p_hidden"],
    }


if __name__ == "__main__":
    main()
