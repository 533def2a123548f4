"""posrec beside other libraries: the same sessions, the same test samples, the same machine, the
same ranks.

    python benchmarks/peers.py prepared/demo/data --work scratch/peers
    python benchmarks/peers.py prepared/diginetica --work scratch/peers --peers recbole posrec --models sasrec narm \\
        --device cuda --epochs 100 --environment here

Each peer gets an environment of its own below --work, and a script in benchmarks/peers: the code
that its user would write. All train without the latest tenth of the training sessions, which is for
early stopping where a peer has it, and rank every test sample once, all items of training, ties
against the target. A peer is trained with its defaults, and with the settings that it documents for
the dataset if there are some; posrec with its own defaults, and with those of each peer that has
the same model ("as recbole"). Where a few epochs of a peer's large batches are too few steps to
train with, both are also trained with smaller ones ("batches of 256"). --epochs is the most epochs
that any of them trains.

GRU4Rec_PyTorch_Official and session-rec are not on the package index; they are measured where
--gru4rec and --session-rec name folders of their code.

A row of results/peers.json is written after each training, and a training with a row is not run
again; delete the row to run it once more. A failure is a row with the error."""

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
FOLDERS = ("gru4rec", "session_rec")  # peers whose code is in a folder
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
# An epoch of the demo's shop is 60 batches of RecBole's 2,048 samples.
SMALL_BATCHES = "batches of 256"
SMALLER = ("demo", "recbole")
# The defaults of a peer's model, in the names of posrec's settings.
RECBOLE = {
    "epochs": 300, "patience": 10, "batch_size": 2048, "learning_rate": 0.001, "decay": 1.0, "l2": 0.0,
    "d": 64, "max_length": 50,
}  # fmt: skip
RECTOOLS = {
    "protocol": "paper", "epochs": 3, "batch_size": 512, "learning_rate": 0.001, "decay": 1.0, "l2": 0.0,
    "d": 256, "max_length": 100,
}  # fmt: skip
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
    for job in wanted(options):
        rows = read_json(options.out) if options.out.exists() else []
        if not any(all(row[name] == job[name] for name in KEY) for row in rows):
            write_row(options.out, outcome(job, data, options), KEY)


def wanted(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every training that was asked for: what identifies its row, and its settings."""
    name = dataset_name(options.dataset)
    for peer in options.peers:
        for model in MODELS[peer]:
            if options.models and model not in options.models:
                continue
            if peer in FOLDERS and getattr(options, peer) is None:
                continue
            settings: dict[str, dict[str, Any]] = {
                "default": REQUIRED.get((peer, model), {})
            }
            if (peer, name, model) in DOCUMENTED:
                settings["documented"] = DOCUMENTED[peer, name, model]
            if (name, peer) == SMALLER:
                settings[SMALL_BATCHES] = {"train_batch_size": 256}
            if peer == "posrec":
                as_peers = {
                    other: values
                    for (other, same), values in AS_PEER.items()
                    if same == model
                }
                settings |= {
                    f"as {other}": values for other, values in as_peers.items()
                }
                smaller = [other for other in as_peers if (name, other) == SMALLER]
                settings |= {
                    f"as {other}, {SMALL_BATCHES}": as_peers[other]
                    | {"batch_size": 256}
                    for other in smaller
                }
            for setting, values in settings.items():
                if options.settings and setting not in options.settings:
                    continue
                key = (name, peer, model, setting, options.device, options.epochs)
                yield dict(zip(KEY, key, strict=True)) | {"settings": values}


def dataset_name(folder: Path) -> str:
    """The name of a dataset: that of its folder, or of the folder around it if that is called data."""
    return folder.parent.name if folder.name == "data" else folder.name


def write_sessions(data: PreparedDataset, work: Path) -> None:
    """What the scripts read: the sessions of the three parts, every prefix of which is a sample."""
    data.require_test_part()
    if data.test.targets is not None:
        raise InputError(
            f"{data.path} was prepared with --target-events; the peers rank every prefix of a session"
        )
    parts = {"train": data.fitting, "validation": data.validation, "test": data.test}
    arrays = {
        "items": np.array(data.train_items),
        "vocabulary": np.array(len(data.vocabulary)),
    }
    for name, part in parts.items():
        first = int(part.offsets[0])
        end = int(part.offsets[-1])
        arrays[f"{name}_items"] = part.items[first:end].numpy()
        arrays[f"{name}_offsets"] = (part.offsets - first).numpy()
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
    more = {
        "data": options.dataset,
        "sessions": options.work / "sessions.npz",
        "threads": options.threads,
    }
    more["peer_folder"] = (
        getattr(options, job["peer"]) if job["peer"] in FOLDERS else None
    )
    absolute = {
        name: str(value.resolve()) if isinstance(value, Path) else value
        for name, value in more.items()
    }
    (folder / "job.json").write_text(
        json.dumps(job | absolute | {"epochs": options.epochs}), encoding="utf-8"
    )
    row = job | {"lines_of_user_code": lines_of_code(script)}
    try:
        python = interpreter(job["peer"], options)
        threads = [
            f"{name}={options.threads}"
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        ]
        taken = measured(
            ["env", *threads, str(python), str(script), str(folder / "job.json")]
        )
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
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", environment], check=True
        )
        # torch first, in its version: pip must not look for another one.
        for packages in dict.fromkeys((PACKAGES[peer][:1], PACKAGES[peer])):
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", *packages], check=True
            )
        complete.touch()
    return python


def accuracy(ranks: torch.Tensor, data: PreparedDataset) -> dict[str, Any]:
    """Recall and MRR in per cent, each with its 95 % interval over sessions."""
    session = session_of_samples(data.test)
    metrics = rank_metrics(ranks)
    intervals = {}
    for metric, k in METRICS:
        of_samples = gains(ranks, metric, k)
        bounds = compare_paired(of_samples, torch.zeros_like(of_samples), session)
        intervals[f"{metric}@{k}"] = [
            round(100 * bound, 2) for bound in (bounds.low, bounds.high)
        ]
    return {
        "samples": len(ranks),
        "metrics": {name: round(100 * metrics[name], 2) for name in intervals},
        "intervals": intervals,
    }


def lines_of_code(script: Path) -> int:
    """Lines without blank ones, comments, docstrings, and those that only measure, which end in `#
    measures`."""
    text = script.read_text(encoding="utf-8")
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        bool(line.strip())
        and not line.strip().startswith("#")
        and not line.endswith("# measures")
        for number, line in enumerate(text.splitlines(), start=1)
        if number not in strings
    )


if __name__ == "__main__":
    main()
