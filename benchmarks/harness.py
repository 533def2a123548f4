"""What all benchmarks share: arguments, data cut from others, measuring in turns and in processes,
the result file."""

import argparse
import json
import multiprocessing
import os
import platform
import resource
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

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.vocabulary import Vocabulary
from posrec.io import read_json, write_json
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.recommend.export.writing import write_export
from posrec.recommend.recommender import Recommender
from posrec.runs.run import Run, load_run
from posrec.training.adam import make_optimizer
from posrec.training.epoch import EpochRunner
from posrec.training.settings import Settings

CPU = torch.device("cpu")


def parser_for(about: str | None, out: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring; with `out`, the option --out has this default."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out is not None:
        parser.add_argument(
            "--out", type=Path, default=Path(out), help="the result file"
        )
    return parser


def options(about: str | None, out: str, **defaults: Any) -> argparse.Namespace:
    """The arguments of a script that has --out and an option for each default, of the default's
    type."""
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
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def conditions() -> dict[str, Any]:
    """The machine and versions that every result records."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "machine": f"{machine}, {torch.cuda.get_device_name()}"
        if torch.cuda.is_available()
        else machine,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result with its command and conditions, and print it."""
    whole = {"command": command(), **result, **conditions()}
    write_json(path, whole)
    print(json.dumps(whole, indent=2))


def write_row(path: Path, row: Mapping[str, Any], key: Sequence[str]) -> None:
    """The same for a file of rows: the row takes the place of the one with the same values of
    `key`."""
    rows = read_json(path) if path.exists() else []
    whole = {"command": command(), **row, **conditions()}
    write_json(
        path,
        [*(one for one in rows if any(one[name] != row[name] for name in key)), whole],
    )
    print(json.dumps(whole, indent=2))


def sessions_of(data: PreparedDataset, part: SessionDataset) -> list[list[str]]:
    """The raw ids of the clicks of each session of a part."""
    return [
        [data.vocabulary.item(item) for item in part.session(n).tolist()]
        for n in range(part.sessions)
    ]


def prepare_sessions(
    folder: Path, train: list[list[str]], test: list[list[str]], **options: Any
) -> PreparedDataset:
    """A dataset of these sessions, as `posrec prepare --format sessions` makes it."""
    from posrec.data.prepare.pipeline import (
        prepare,
    )  # needs polars, which a machine with a GPU may lack

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
    items: int, folder: Path, vocabulary: Vocabulary | None = None
) -> Path:
    """PosRec with random weights, for speed that does not depend on what was learned; its items are
    i0, i1, ..."""
    torch.manual_seed(0)
    config = PosRecConfig()
    about = {"model": "posrec", "items": items, **asdict(config), "training": {}}
    vocabulary = vocabulary or Vocabulary([f"i{number}" for number in range(items)])
    popularity = torch.randint(1, 1000, (items,)).numpy()
    run = Run(folder, PosRec(items, config).eval, vocabulary, about, popularity)
    Recommender(run, "cpu").save(folder, export=False)
    write_export(load_run(folder))
    return folder


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

    def run(self, place: int) -> Tensor:
        """The losses of the steps from this one on: one on a CPU, as many as are captured on a GPU."""
        return self.runner.run(self.order, place)


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
    lines = map(
        json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    )
    return [line for line in lines if "loss" in line]


def in_turns(
    ways: Mapping[str, Callable[[int], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each way in each round. The ways take turns, so that other work slows all of
    them alike."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + rounds):
        for name, work in ways.items():
            began = clock()
            work(turn)
            taken[name] += [1000 * (clock() - began)] if turn >= warm_up else []
    return taken


def medians(taken: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(times), 2) for name, times in taken.items()}


def in_processes(script: str, processes: int, *options: object) -> list[dict[str, Any]]:
    """`python SCRIPT OPTIONS` in each of so many processes, as torchrun would, on one thread each;
    the JSON of their last lines."""
    shared = {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    started = []
    for rank in range(processes):
        own = {"WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        line = [sys.executable, script, *map(str, options)]
        environment = {**os.environ, **shared, **own}
        started.append(
            subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
        )
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"{' '.join(map(str, options))}: a process failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def apart(work: Callable[..., object], *arguments: object) -> None:
    """Call it in a process of its own: a process that is started later would count its memory as
    its own peak."""
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
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )  # kilobytes on Linux
