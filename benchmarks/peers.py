"""posrec and other libraries on the same sessions, test samples and machine, by the same ranks.

    python benchmarks/peers.py prepared/demo/data --work peers-work --epochs 2

docs/peers.md says how they are compared. Each peer gets its own environment below --work, and has
a script in benchmarks/peers: the code that its user would write. A row of results/peers.json is
written after each training, also after one that failed, and a training with a row is not run
again; delete the row to repeat it.
"""

import argparse
import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import measured, parser_for, write_row
from posrec.data.dataset import PreparedDataset, load
from posrec.errors import InputError
from posrec.evaluation.metrics import gains, rank_metrics
from posrec.evaluation.significance import compare_paired, session_of_samples
from posrec.io import read_json

SCRIPTS = Path(__file__).parent / "peers"
# Peers that are not on the package index: an option names the folder of their code.
FOLDERS = ("gru4rec", "session_rec")
KEY = ("dataset", "peer", "model", "setting", "device", "epochs_at_most")
METRICS = (("recall", 10), ("mrr", 10), ("recall", 20), ("mrr", 20))
TORCH = "torch==2.13.0"
# What pip is given. RecBole 1.2.1 uses names that numpy 2 and pandas 2 removed, and pkg_resources
# of setuptools.
PACKAGES = {
    "recbole": (
        TORCH,
        "recbole==1.2.1",
        "numpy==1.26.4",
        "pandas==1.5.3",
        "setuptools<80",
    ),
    "rectools": (TORCH, "rectools[torch]==0.19.0"),
    "replay": (TORCH, "replay-rec[torch,spark]==0.22.0"),
    "implicit": ("implicit==0.7.3",),
    "gru4rec": (TORCH, "numpy==1.26.4", "pandas==1.5.3"),
    "session_rec": ("numpy==1.26.4", "pandas==1.5.3", "pympler"),
}
# The cheapest models first, so that an interrupted run has measured most of them.
MODELS = {
    "implicit": ("itemknn", "bprmf", "als"),
    "rectools": ("pop", "itemknn", "sasrec"),
    "replay": ("sasrec",),
    "gru4rec": ("gru4rec",),
    "session_rec": ("vsknn", "stan"),
    "recbole": ("fpmc", "stamp", "gru4rec", "narm", "sasrec", "srgnn", "gcsan"),
    "posrec": (
        "pop",
        "itemknn",
        "vsknn",
        "stan",
        "bprmf",
        "fpmc",
        "stamp",
        "gru4rec",
        "narm",
        "sasrec",
        "srgnn",
        "gcsan",
        "posrec-plus",
    ),
}
# The settings of the results for Diginetica that the repository of RecBole-GNN lists; no others are
# documented.
DIGINETICA = {
    "train_batch_size": 4096,
    "eval_batch_size": 2000,
    "MAX_ITEM_LIST_LENGTH": 20,
}
DOCUMENTED: dict[tuple[str, str, str], dict[str, Any]] = {
    ("recbole", "diginetica", "gru4rec"): DIGINETICA | {"learning_rate": 0.01},
    ("recbole", "diginetica", "sasrec"): DIGINETICA
    | {"hidden_dropout_prob": 0.2, "attn_dropout_prob": 0.2},
    ("recbole", "diginetica", "narm"): DIGINETICA,
    ("recbole", "diginetica", "srgnn"): DIGINETICA,
    ("recbole", "diginetica", "gcsan"): DIGINETICA,
}
# Neither class of session-rec has a default for the number of neighbours.
REQUIRED: dict[tuple[str, str], dict[str, Any]] = {
    ("session_rec", "vsknn"): {
        "k": 500,
        "sample_size": 5000,
        "weighting": "quadratic",
        "idf_weighting": 5,
    },
    ("session_rec", "stan"): {"k": 500},
}
# An epoch of the demo's shop is 60 batches of RecBole's 2,048 samples, too few steps to train with,
# so both are also trained with smaller ones.
SMALL_BATCHES = "batches of 256"
SMALLER = ("demo", "recbole")
# The defaults of a peer's model, in the names of posrec's settings.
RECBOLE = {
    "epochs": 300,
    "patience": 10,
    "batch_size": 2048,
    "learning_rate": 0.001,
    "decay": 1.0,
    "l2": 0.0,
    "d": 64,
    "max_length": 50,
}
RECTOOLS = {
    "protocol": "paper",
    "epochs": 3,
    "batch_size": 512,
    "learning_rate": 0.001,
    "decay": 1.0,
    "l2": 0.0,
    "d": 256,
    "max_length": 100,
}
AS_PEER: dict[tuple[str, str], dict[str, Any]] = {
    # RecBole draws a negative for each sample; here each sample has all drawn negatives, and their
    # mean in the loss.
    ("recbole", "fpmc"): RECBOLE
    | {"negatives": 2048, "in_batch": False, "sample_alpha": 0.0, "max_length": 1},
    ("recbole", "stamp"): RECBOLE,
    ("recbole", "gru4rec"): RECBOLE
    | {
        "hidden": 128,
        "embedding_dropout": 0.3,
        "dropout": 0.0,
        "truncated": False,
        "spread": 0.05,
    },
    ("recbole", "narm"): RECBOLE | {"hidden": 128, "spread": 0.08},
    ("recbole", "sasrec"): RECBOLE
    | {"layers": 2, "heads": 2, "dropout": 0.5, "spread": 0.02, "scaled": True},
    ("recbole", "srgnn"): RECBOLE,
    # RecBole's attention has two heads; posrec's has one, as in the paper.
    ("recbole", "gcsan"): RECBOLE | {"layers": 2, "dropout": 0.5},
    # Batches of 128 sessions are about 512 samples.
    ("rectools", "sasrec"): RECTOOLS | {"layers": 2, "heads": 4, "dropout": 0.2},
    ("replay", "sasrec"): RECBOLE
    | {"batch_size": 512, "d": 192, "layers": 2, "heads": 4, "dropout": 0.3},
    # The authors' optimiser is Adagrad, with a rate of 0.05.
    ("gru4rec", "gru4rec"): {
        "protocol": "paper",
        "epochs": 10,
        "batch_size": 64,
        "learning_rate": 0.001,
        "decay": 1.0,
        "l2": 0.0,
        "d": 100,
        "hidden": 100,
        "dropout": 0.0,
    },
    ("session_rec", "vsknn"): {
        "k": 500,
        "sample_size": 5000,
        "weighting": "quadratic",
        "decay": "div",
        "idf": 5.0,
    },
    ("session_rec", "stan"): {
        "k": 500,
        "sample_size": 5000,
        "lambda1": 1.02,
        "lambda2": 1.0,
        "lambda3": 2.05,
    },
    ("implicit", "itemknn"): {
        "neighbours": 20,
        "regularization": 0.0,
        "alpha": 0.5,
        "all_items": True,
        "itself": True,
    },
}


def main() -> None:
    parser = parser_for(__doc__, "results/peers.json")
    parser.add_argument("dataset", type=Path)
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="the folder of environments and of unfinished work",
    )
    parser.add_argument("--peers", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--models",
        nargs="+",
        help="by default all models that a peer and posrec have in common",
    )
    parser.add_argument(
        "--settings",
        nargs="+",
        help='by default all; such as default, documented, "as recbole"',
    )
    parser.add_argument(
        "--epochs", type=int, default=10, help="the most epochs that any model trains"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--environment",
        choices=("own", "here"),
        default="own",
        help="here: the peers are in this interpreter",
    )
    for peer in FOLDERS:
        parser.add_argument(
            f"--{peer.replace('_', '-')}", type=Path, help="the folder of its code"
        )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = load(options.dataset)
    write_sessions(data, options.work)
    for job in requested_jobs(options):
        rows = read_json(options.out) if options.out.exists() else []
        if not any(all(row[name] == job[name] for name in KEY) for row in rows):
            write_row(options.out, outcome(job, data, options), KEY)


def requested_jobs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every training that the options ask for: what identifies its row, and its settings."""
    dataset = dataset_name(options.dataset)
    for peer in options.peers:
        if peer in FOLDERS and getattr(options, peer) is None:
            continue
        for model in MODELS[peer]:
            if options.models and model not in options.models:
                continue
            for setting, values in settings_of(dataset, peer, model).items():
                if options.settings and setting not in options.settings:
                    continue
                key = (dataset, peer, model, setting, options.device, options.epochs)
                yield dict(zip(KEY, key, strict=True)) | {"settings": values}


def settings_of(dataset: str, peer: str, model: str) -> dict[str, dict[str, Any]]:
    """A peer is trained with its defaults, and with the settings that it documents for the dataset;
    posrec with its own defaults, and with those of each peer that has the same model."""
    settings = {"default": REQUIRED.get((peer, model), {})}
    if (peer, dataset, model) in DOCUMENTED:
        settings["documented"] = DOCUMENTED[peer, dataset, model]
    if (dataset, peer) == SMALLER:
        settings[SMALL_BATCHES] = {"train_batch_size": 256}
    if peer != "posrec":
        return settings
    as_peers = {
        other: values
        for (other, other_model), values in AS_PEER.items()
        if other_model == model
    }
    for other, values in as_peers.items():
        settings[f"as {other}"] = values
    for other, values in as_peers.items():
        if (dataset, other) == SMALLER:
            settings[f"as {other}, {SMALL_BATCHES}"] = values | {"batch_size": 256}
    return settings


def dataset_name(folder: Path) -> str:
    """The name of its folder, or of the folder around it if that is called data."""
    return folder.parent.name if folder.name == "data" else folder.name


def write_sessions(data: PreparedDataset, work: Path) -> None:
    """Write what the scripts read: the sessions of the three splits.

    The validation split is the latest tenth of the training sessions, for peers that stop early.
    """
    data.require_test_part()
    if data.test.targets is not None:
        raise InputError(
            f"{data.path} was prepared with --target-events; "
            "the peers rank every prefix of a session"
        )
    splits = {"train": data.fitting, "validation": data.validation, "test": data.test}
    arrays = {
        "items": np.array(data.train_items),
        "vocabulary": np.array(len(data.vocabulary)),
    }
    for name, split in splits.items():
        first = int(split.offsets[0])
        end = int(split.offsets[-1])
        arrays[f"{name}_items"] = split.items[first:end].numpy()
        arrays[f"{name}_offsets"] = (split.offsets - first).numpy()
    work.mkdir(parents=True, exist_ok=True)
    np.savez(work / "sessions.npz", **arrays)


def outcome(
    job: dict[str, Any], data: PreparedDataset, options: argparse.Namespace
) -> dict[str, Any]:
    """The row of a training: what was measured, or the error."""
    folder = options.work / "job"
    script = SCRIPTS / f"{job['peer']}_peer.py"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    peer_folder = None
    if job["peer"] in FOLDERS:
        peer_folder = str(getattr(options, job["peer"]).resolve())
    read_by_script = {
        "data": str(options.dataset.resolve()),
        "sessions": str((options.work / "sessions.npz").resolve()),
        "threads": options.threads,
        "peer_folder": peer_folder,
        "epochs": options.epochs,
    }
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job | read_by_script), encoding="utf-8")
    row = job | {"lines_of_user_code": lines_of_code(script)}
    try:
        python = interpreter(job["peer"], options)
        environment = [
            f"{name}={options.threads}"
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        ]
        line = ["env", *environment, str(python), str(script), str(job_file)]
        taken = measured(line)
    except (SystemExit, subprocess.CalledProcessError) as error:
        return row | {"error": str(error).strip().splitlines()[-1][:300]}
    ranks = torch.from_numpy(np.load(folder / "ranks.npy"))
    return row | accuracy(ranks, data) | read_json(folder / "result.json") | taken


def interpreter(peer: str, options: argparse.Namespace) -> Path:
    """The Python of a peer's environment, which is made if it is missing."""
    if peer == "posrec" or options.environment == "here":
        return Path(sys.executable)
    environment = options.work.resolve() / f"env-{peer}"
    python = environment / "bin" / "python"
    complete = environment / "complete"
    if not complete.exists():
        create = [sys.executable, "-m", "venv", "--clear", environment]
        subprocess.run(create, check=True)
        install = [python, "-m", "pip", "install", "--quiet"]
        # torch first, in its version: pip must not look for another one.
        for packages in dict.fromkeys((PACKAGES[peer][:1], PACKAGES[peer])):
            subprocess.run([*install, *packages], check=True)
        complete.touch()
    return python


def accuracy(ranks: torch.Tensor, data: PreparedDataset) -> dict[str, Any]:
    """Recall and MRR in per cent, each with its 95 % interval over sessions."""
    session = session_of_samples(data.test)
    metrics = rank_metrics(ranks)
    intervals = {}
    for metric, k in METRICS:
        of_samples = gains(ranks, metric, k)
        test = compare_paired(of_samples, torch.zeros_like(of_samples), session)
        bounds = [round(100 * bound, 2) for bound in (test.low, test.high)]
        intervals[f"{metric}@{k}"] = bounds
    return {
        "samples": len(ranks),
        "metrics": {name: round(100 * metrics[name], 2) for name in intervals},
        "intervals": intervals,
    }


def lines_of_code(script: Path) -> int:
    """Lines that are not blank, a comment or a docstring, and do not end in `# measures`."""
    text = script.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = [
        line.strip()
        for number, line in enumerate(text.splitlines(), start=1)
        if number not in docstrings and not line.endswith("# measures")
    ]
    return sum(bool(line) and not line.startswith("#") for line in code)


if __name__ == "__main__":
    main()
