"""posrec and other libraries on the same sessions, test samples and machine, by the same ranks.

    python benchmarks/peers.py prepared/demo/data --work peers-work --epochs 2

docs/peers.md says how they are compared. Each peer gets its own environment below --work, and has
a script in benchmarks/peers: the code that its user would write. A row of results/peers.json is
written after each training, also after one that failed, and a training with a row is not run
again; delete the row to repeat it.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import measured, parser_for, write_row
from peer_settings import settings_of
from posrec.data.dataset import PreparedDataset, load
from posrec.errors import InputError
from posrec.evaluation.metrics import gains, rank_metrics
from posrec.evaluation.significance import compare_paired, session_of_samples
from posrec.io import read_json

SCRIPTS = Path(__file__).parent / "peers"
# Peers that are not on the package index: an option names the folder of their code.
FOLDERS = ("gru4rec", "session_rec")
KEY = ("dataset", "peer", "model", "setting", "device")
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
    "recbole": ("srgnn", "sasrec", "core", "narm", "gru4rec"),
    "posrec": (
        "posrec-plus",
        "posrec",
        "sasrec",
        "narm",
        "gru4rec",
        "srgnn",
        "vsknn",
        "stan",
        "itemknn",
    ),
    "session_rec": ("stan", "vsknn"),
    "implicit": ("itemknn",),
}


def main() -> None:
    parser = parser_for(__doc__, "results/peers.json")
    parser.add_argument("datasets", nargs="+", type=Path, help="prepared datasets")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="the folder of environments and of unfinished work",
    )
    parser.add_argument("--peers", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--models", nargs="+", help="by default all of MODELS")
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
    for peer in FOLDERS:
        parser.add_argument(
            f"--{peer.replace('_', '-')}", type=Path, help="the folder of its code"
        )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = {dataset_name(folder): load(folder) for folder in options.datasets}
    for name, dataset in data.items():
        write_sessions(dataset, options.work / name)
    rows = read_json(options.out) if options.out.exists() else []
    done = {key_of(row) for row in rows}
    jobs = [job for job in requested_jobs(options) if key_of(job) not in done]
    for peer in dict.fromkeys(job["peer"] for job in jobs):
        interpreter(peer, options)
    with ThreadPoolExecutor(options.jobs) as pool:
        trainings = [
            pool.submit(outcome, job, data[job["dataset"]], options) for job in jobs
        ]
        for training in as_completed(trainings):
            write_row(options.out, training.result(), KEY)


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def requested_jobs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every training that the options ask for: what identifies its row, and its settings."""
    for dataset in map(dataset_name, options.datasets):
        for peer in options.peers:
            if peer in FOLDERS and getattr(options, peer) is None:
                continue
            for model in MODELS[peer]:
                if options.models and model not in options.models:
                    continue
                for setting, values in settings_of(dataset, peer, model).items():
                    if options.settings and setting not in options.settings:
                        continue
                    key = (dataset, peer, model, setting, options.device)
                    yield dict(zip(KEY, key, strict=True)) | {"settings": values}


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
    np.savez(work / "sessions.npz", **arrays)


def outcome(
    job: dict[str, Any], data: PreparedDataset, options: argparse.Namespace
) -> dict[str, Any]:
    """The row of a training: what was measured, or the error."""
    sessions = options.work.resolve() / job["dataset"]
    folder = sessions / "-".join(key_of(job)).replace(" ", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    peer_folder = None
    if job["peer"] in FOLDERS:
        peer_folder = str(getattr(options, job["peer"]).resolve())
    read_by_script = {
        "data": str(data.path.resolve()),
        "sessions": str(sessions / "sessions.npz"),
        "threads": options.threads,
        "peer_folder": peer_folder,
        "minutes": options.minutes,
    }
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job | read_by_script), encoding="utf-8")
    script = SCRIPTS / f"{job['peer']}_peer.py"
    environment = [
        f"{name}={options.threads}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    ]
    python = interpreter(job["peer"], options)
    try:
        taken = measured(["env", *environment, str(python), str(script), str(job_file)])
    except SystemExit as error:
        print(error, file=sys.stderr)
        return job | {"error": str(error).strip().splitlines()[-1][:300]}
    ranks = torch.from_numpy(np.load(folder / "ranks.npy"))
    row = job | accuracy(ranks, data) | read_json(folder / "result.json") | taken
    shutil.rmtree(folder)
    return row


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


if __name__ == "__main__":
    main()
