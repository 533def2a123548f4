"""What all benchmarks share: arguments, data, measuring in turns and in processes, result files."""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posrec.config import DEFAULT_MODEL
from posrec.data.dataset import PreparedDataset, SessionDataset, load
from posrec.data.vocabulary import Vocabulary
from posrec.io import read_json, write_json
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.registry import MODELS
from posrec.recommend.export.writing import write_export
from posrec.recommend.rank.encoder import drawn_sessions
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from posrec.training.epoch import EpochRunner
from posrec.training.optimizers import make_optimizer
from posrec.training.settings import Settings

CPU = torch.device("cpu")


def parser_for(about: str | None, out: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring; `out` is the default of the option --out."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out is not None:
        parser.add_argument(
            "--out", type=Path, default=Path(out), help="the result file"
        )
    return parser


def options(about: str | None, out: str, **defaults: Any) -> argparse.Namespace:
    """Parse --out and an option for each default, of the default's type."""
    parser = parser_for(about, out)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(
                flag, type=type(default), default=default, help=f"[default: {default}]"
            )
    return parser.parse_args()


def command() -> str:
    """The command line of this script."""
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    return shlex.join(["python", script, *sys.argv[1:]])


def conditions() -> dict[str, Any]:
    """The machine and versions that every result records."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        machine += f", {torch.cuda.get_device_name()}"
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "machine": machine,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result with its command and conditions, and print it."""
    record = {"command": command(), **result, **conditions()}
    write_json(path, record)
    print(json.dumps(record, indent=2))


def write_row(path: Path, row: Mapping[str, Any], key: Sequence[str]) -> None:
    """The same for a file of rows: the row replaces the one with the same values of `key`."""
    rows = read_json(path) if path.exists() else []
    record = {"command": command(), **row, **conditions()}
    others = [old for old in rows if any(old[name] != row[name] for name in key)]
    write_json(path, [*others, record])
    print(json.dumps(record, indent=2))


def sessions_of(data: PreparedDataset, split: SessionDataset) -> list[list[str]]:
    """The raw ids of the clicks of each session of a split."""
    return [
        [data.vocabulary.item(item) for item in split.session(number).tolist()]
        for number in range(split.sessions)
    ]


def prepare_sessions(
    folder: Path, train: list[list[str]], test: list[list[str]], **options: Any
) -> PreparedDataset:
    """A dataset of these sessions, as `posrec prepare --format sessions` makes it."""
    # Needs polars, which a machine with a GPU may lack.
    from posrec.data.prepare.pipeline import prepare

    folder.mkdir(parents=True)
    for name, sessions in (("train", train), ("test", test)):
        text = "".join(" ".join(session) + "\n" for session in sessions)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return prepare(
        folder / "train.txt",
        "sessions",
        folder / "data",
        test=folder / "test.txt",
        **options,
    )


def saved_random_run(
    items: int,
    folder: Path,
    vocabulary: Vocabulary | None = None,
    model: str = DEFAULT_MODEL,
) -> Path:
    """A run with random weights, whose items are i0, i1, ..., clicked as by Zipf's law."""
    torch.manual_seed(0)
    spec = MODELS[model]
    config = spec.config()
    about = {"model": model, "items": items, **asdict(config), "training": {}}
    vocabulary = vocabulary or Vocabulary([f"i{number}" for number in range(items)])
    popularity = 10_000 // np.arange(1, items + 1) + 1
    network = spec.build(items, config).eval()
    run = Run(folder, lambda: network, vocabulary, about, popularity)
    Recommender(run, "cpu").save(folder, export=False)
    write_export(load_run(folder))
    return folder


def default_run_and_posrec(run: str, items: int, folder: Path) -> dict[str, Path]:
    """By the model's name: the run, or the default model of this many items with random weights;
    and PosRec of the same size."""
    first = Path(run) if run else saved_random_run(items, folder / "first")
    config = load_run(first).config
    second = saved_random_run(config["items"], folder / "posrec", model="posrec")
    return {"posrec": second, config["model"]: first}


def shoppers(run: Path, data: str, number: int) -> list[list[str]]:
    """Sessions to recommend for: prefixes of the test sessions of a prepared dataset; without one,
    items drawn by their clicks, and lengths as on Diginetica, 4 on average."""
    draw = np.random.default_rng(0)
    if data:
        dataset = load(data)
        sessions = [
            session[:-1]
            for session in sessions_of(dataset, dataset.test)
            if len(session) > 1
        ]
        return [sessions[index] for index in draw.integers(0, len(sessions), number)]
    opened = load_run(run)
    lengths = np.minimum(draw.geometric(0.25, number), 50)
    drawn = drawn_sessions(opened.popularity, lengths, draw)
    return [[opened.vocabulary.item(click) for click in session] for session in drawn]


class Training:
    """PosRec in training."""

    def __init__(
        self,
        samples: SessionDataset,
        items: int,
        settings: Settings,
        max_length: int,
        device: torch.device = CPU,
    ) -> None:
        torch.manual_seed(0)
        self.samples = samples.to(device)
        self.settings = settings
        self.model = PosRec(items, PosRecConfig(max_length=max_length)).to(device)
        self.optimizer = make_optimizer(self.model, settings, device)
        self.runner = EpochRunner(
            self.model, self.optimizer, self.samples, settings, items
        )
        self.order = self.runner.shuffle(0)

    def run(self, step: int) -> Tensor:
        """The losses of the steps from `step` on: one on a CPU, all captured ones on a GPU."""
        return self.runner.run(self.order, step)


def generated_sessions(items: int, length: int, sessions: int) -> SessionDataset:
    """Sessions of `length` clicks and one more to predict; items are drawn uniformly."""
    draw = torch.Generator().manual_seed(0)
    clicks = length + 1
    drawn = torch.randint(
        1, items + 1, (sessions * clicks,), generator=draw, dtype=torch.int32
    )
    return SessionDataset(
        drawn, torch.arange(0, len(drawn) + 1, clicks), torch.arange(sessions)
    )


def epochs_of(run: Path) -> list[dict[str, Any]]:
    """The lines of the log of a training that are about an epoch."""
    text = (run / "log.jsonl").read_text(encoding="utf-8")
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if "loss" in line]


def in_turns(
    ways: Mapping[str, Callable[[int], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each way in each round.

    The ways take turns, so that other work slows all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + rounds):
        for name, work in ways.items():
            began = clock()
            work(turn)
            if turn >= warm_up:
                times[name].append(1000 * (clock() - began))
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def in_processes(script: str, processes: int, *options: object) -> list[dict[str, Any]]:
    """Run `python SCRIPT OPTIONS` in processes of one thread each, as torchrun would.

    Returns the JSON of the last line of each.
    """
    shared = {
        "WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    started = []
    for rank in range(processes):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        line = [sys.executable, script, *map(str, options)]
        environment = {**os.environ, **shared, **ranks}
        started.append(
            subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
        )
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"{' '.join(map(str, options))}: a process failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def apart(work: Callable[..., object], *arguments: object) -> None:
    """Call `work` in another process.

    The peak memory of a process that is started later includes what this one holds by then.
    """
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{work.__name__} failed")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def measured(line: Sequence[str]) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of a process."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(line)} failed:\n{output.read().decode()}")
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gib": round(usage.ru_maxrss / 2**20, 3),  # kilobytes on Linux
    }


def posrec(*arguments: object) -> list[str]:
    """The command line of a posrec command."""
    return [sys.executable, "-m", "posrec", *map(str, arguments)]


def peak_mb() -> float:
    """The peak memory of this process so far, in megabytes."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux
    return kilobytes / 1024
