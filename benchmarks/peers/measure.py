"""posrec and other libraries on the same sessions, test samples and machine, by the same ranks.

    python -m benchmarks.peers.measure prepared/diginetica --work build/peers --jobs 4

Each library is trained with its own settings (settings.py) until its own rule stops it
(docs/peers.md). It has an environment below --work and a script in libraries/. A row is
written when a training ends. A training with a row is not run again, unless it failed, or was ended
by --minutes and may now take longer.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.measuring import measured
from benchmarks.harness.results import parser_for, write_row
from benchmarks.peers.settings import settings_of
from posrec.data.dataset import PreparedDataset, load
from posrec.errors import InputError
from posrec.evaluation.metrics import gains, rank_metrics
from posrec.evaluation.significance import compare_paired, session_of_samples
from posrec.io import read_json

REPOSITORY = Path(__file__).parents[2]
# Peers that are not on the package index: where their code is, and its commit.
CODE = {
    "gru4rec": (
        "https://github.com/hidasib/GRU4Rec_PyTorch_Official",
        "d1fc31105577665d2f105de1c8d9a38d223a9a22",
    ),
    "session_rec": (
        "https://github.com/rn5l/session-rec",
        "5dcd583cbd8d44703a5248b9a308945f24b91390",
    ),
}
KEY = ("dataset", "peer", "model", "setting")
METRICS = (("recall", 20), ("mrr", 20))
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
# The slowest to train first, so that no processor waits for them at the end.
MODELS = {
    "rectools": ("sasrec", "bert4rec"),
    "replay": ("sasrec",),
    "gru4rec": ("gru4rec",),
    "recbole": ("srgnn", "gcsan", "sasrec", "core", "narm", "gru4rec"),
    "posrec": (
        "posrec-plus",
        "posrec",
        "sasrec",
        "narm",
        "gru4rec",
        "srgnn",
        "gcsan",
        "vsknn",
        "stan",
        "itemknn",
    ),
    "session_rec": ("stan", "vsknn"),
    "implicit": ("itemknn",),
}


def main() -> None:
    options = parsed_options()
    torch.set_num_threads(options.threads)
    data = {dataset_name(folder): load(folder) for folder in options.datasets}
    for name, dataset in data.items():
        write_sessions(dataset, options.work / name)
    rows = read_json(options.out) if options.out.exists() else []
    done = {key_of(row) for row in rows if is_final(row, options.minutes)}
    jobs = [job for job in requested_jobs(options) if key_of(job) not in done]
    for peer in dict.fromkeys(job["peer"] for job in jobs):
        interpreter(peer, options)
        code_of(peer, options)
    with ThreadPoolExecutor(options.jobs) as pool:
        trainings = [
            pool.submit(outcome, job, data[job["dataset"]], options) for job in jobs
        ]
        for training in as_completed(trainings):
            write_row(options.out, training.result(), KEY)


def parsed_options() -> argparse.Namespace:
    parser = parser_for(__doc__, "results/peers.json")
    parser.add_argument("datasets", nargs="+", type=Path, help="prepared datasets")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="the folder of environments and of unfinished work",
    )
    parser.add_argument("--peers", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--models", nargs="+", help="by default all of them")
    parser.add_argument(
        "--settings", nargs="+", help='by default all; such as own, "as recbole"'
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many trainings run side by side"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="a peer's training ends with the epoch in which it has taken this long",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of each training")
    parser.add_argument(
        "--environment",
        choices=("own", "here"),
        default="own",
        help="here: the peers are in this interpreter",
    )
    for peer in CODE:
        parser.add_argument(
            f"--{peer.replace('_', '-')}",
            type=Path,
            help="the folder of its code; without it, git clones it",
        )
    return parser.parse_args()


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def is_final(row: Mapping[str, Any], minutes: float | None) -> bool:
    """Whether the training needs not be run again, if it may take so many minutes."""
    if "error" in row:
        return False
    if not row["ended_by_limit"]:
        return True
    return minutes is not None and minutes <= row["minutes"]


def requested_jobs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every training that the options ask for: what identifies its row, and its settings."""
    for dataset in map(dataset_name, options.datasets):
        for peer in options.peers:
            for model in MODELS[peer]:
                if options.models and model not in options.models:
                    continue
                for setting, values in settings_of(dataset, peer, model).items():
                    if options.settings and setting not in options.settings:
                        continue
                    key = (dataset, peer, model, setting)
                    yield dict(zip(KEY, key, strict=True)) | {
                        "device": options.device,
                        "settings": values,
                    }


def dataset_name(folder: Path) -> str:
    """The name of its folder, or of the folder around it if that is called data."""
    folder = folder.resolve()
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
    np.savez(work / "sessions.npz", allow_pickle=False, **arrays)


def outcome(
    job: dict[str, Any], data: PreparedDataset, options: argparse.Namespace
) -> dict[str, Any]:
    """The row of a training: what was measured, or the error."""
    sessions = options.work.resolve() / job["dataset"]
    folder = sessions / "-".join(key_of(job)).replace(" ", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    code = code_of(job["peer"], options)
    row = job | {"minutes": options.minutes}
    read_by_script = {
        "data": str(data.path.resolve()),
        "sessions": str(sessions / "sessions.npz"),
        "threads": options.threads,
        "peer_folder": str(code) if code else None,
    }
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(row | read_by_script), encoding="utf-8")
    try:
        taken = measured(line_of(job["peer"], job_file, options))
    except SystemExit as error:
        print(error, file=sys.stderr)
        return row | {"error": str(error).strip().splitlines()[-1][:300]}
    ranks = torch.from_numpy(np.load(folder / "ranks.npy"))
    row |= accuracy(ranks, data) | read_json(folder / "result.json") | taken
    shutil.rmtree(folder)
    return row


def line_of(peer: str, job_file: Path, options: argparse.Namespace) -> list[str]:
    """The command line of a training. Its script imports from this repository."""
    path = filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))
    variables = {
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": options.threads,
        "MKL_NUM_THREADS": options.threads,
    }
    environment = [f"{name}={value}" for name, value in variables.items()]
    script = f"benchmarks.peers.libraries.{peer}_peer"
    python = str(interpreter(peer, options))
    return ["env", *environment, python, "-m", script, str(job_file)]


def interpreter(peer: str, options: argparse.Namespace) -> Path:
    """The Python of a peer's environment, which is made if it is missing."""
    if peer == "posrec" or options.environment == "here":
        return Path(sys.executable)
    environment = options.work.resolve() / f"env-{peer}"
    python: Path = environment / "bin" / "python"
    complete = environment / "complete"
    if not complete.exists():
        create = [sys.executable, "-m", "venv", "--clear", str(environment)]
        subprocess.run(create, check=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        # torch first, in its version: pip must not look for another one.
        for packages in dict.fromkeys((PACKAGES[peer][:1], PACKAGES[peer])):
            subprocess.run([*install, *packages], check=True)
        complete.touch()
    return python


def code_of(peer: str, options: argparse.Namespace) -> Path | None:
    """The folder of a peer's code that is not on the package index; cloned if it is missing."""
    if peer not in CODE:
        return None
    folder: Path = getattr(options, peer) or options.work / f"code-{peer}"
    if not folder.exists():
        address, commit = CODE[peer]
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        subprocess.run(["git", "clone", "--quiet", address, unfinished], check=True)
        checkout = ["git", "-C", str(unfinished), "checkout", "--quiet", commit]
        subprocess.run(checkout, check=True)
        unfinished.rename(folder)
    return folder.resolve()


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


if __name__ == "__main__":
    main()
