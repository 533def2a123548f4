"""Time and memory of training with millions of items, by a softmax over sampled items.

    python -m benchmarks.speed.large_catalogue

The log is generated: sessions of five clicks, on items of which few are popular. Every case runs
in another process (--case) and is written when it is done; a case in the file is not run again.
Settings are the model's defaults, except for the loss and the batch. The first steps, which
compile and allocate memory, are not timed.
"""

import json
import sys
import time
from typing import Any

import torch

from benchmarks.harness.measuring import in_processes, peak_mb
from benchmarks.harness.results import command, conditions, options
from benchmarks.harness.training import CPU
from posrec.data.dataset import SessionDataset
from posrec.io import read_json, write_json
from posrec.models.base import SessionModel
from posrec.models.registry import MODELS
from posrec.training.epoch import EpochRunner, matmul_precision
from posrec.training.optimizers import make_optimizer
from posrec.training.settings import Settings

LENGTH = 5  # clicks of a session
SKEW = 3  # an item's number is that of a uniform draw to this power
ITEMS = (1_000_000, 10_000_000)
MODEL_NAMES = ("posrec", "posrec-plus")
WARM_UP = 64  # steps
TIMED = 512  # steps


def generated_log(items: int, clicks: int) -> SessionDataset:
    draw = torch.Generator().manual_seed(0)
    sessions = clicks // LENGTH
    uniform = torch.rand(sessions * LENGTH, generator=draw, dtype=torch.double)
    drawn = (uniform**SKEW * items).int() + 1
    offsets = torch.arange(0, len(drawn) + 1, LENGTH)
    return SessionDataset(drawn, offsets, torch.arange(sessions))


def measure(
    name: str, items: int, clicks: int, batch: int, device: torch.device
) -> dict[str, Any]:
    torch.manual_seed(0)
    before = peak_mb()
    spec = MODELS[name]
    settings = Settings(**{**spec.settings, "loss": "sampled", "batch_size": batch})
    samples = generated_log(items, clicks).to(device)
    model = spec.build(items, spec.config())
    assert isinstance(model, SessionModel)
    model.to(device).train()
    model.count(samples.items, samples.offsets)
    optimizer = make_optimizer(model, settings, device)
    with matmul_precision(settings, device, items):
        runner = EpochRunner(model, optimizer, samples, settings, items)
        order = runner.shuffle(0)
        step = 0
        while step < min(WARM_UP, order.steps // 2):
            step += len(runner.run(order, step))
        first = step
        began = clock(device)
        while step < min(WARM_UP + TIMED, order.steps):
            step += len(runner.run(order, step))
        seconds = clock(device) - began
    trained = order.samples * (step - first) / order.steps
    if device.type == "cuda":
        peak_gb = torch.cuda.max_memory_reserved() / 1e9
    else:
        peak_gb = (peak_mb() - before) / 1e3
    return {
        "d": model.config.d,
        "steps": step - first,
        "ms_a_step": round(1000 * seconds / (step - first), 3),
        "seconds_a_million_clicks": round(1e6 * seconds / trained, 3),
        "memory_gb": round(peak_gb, 1),
    }


def clock(device: torch.device) -> float:
    """Seconds, after all work of a GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    arguments = options(
        __doc__,
        "results/large_catalogue.json",
        device="cuda",
        items=0,
        clicks=10_000_000,
        batch=4096,
        case="",
    )
    device = CPU if arguments.device == "cpu" else torch.device("cuda")
    clicks = arguments.clicks
    batch = arguments.batch
    if arguments.case:
        name, items = json.loads(arguments.case)
        print(json.dumps(measure(name, items, clicks, batch, device)))
        return
    out = arguments.out
    report = read_json(out) if out.exists() else {"cases": {}}
    report |= {"command": command(), "loss": "sampled", "batch": batch}
    report |= {**conditions(), "clicks": clicks, "seed": 0}
    for items in (arguments.items,) if arguments.items else ITEMS:
        for name in MODEL_NAMES:
            case = f"{name}, {items} items"
            if case in report["cases"]:
                continue
            sent = json.dumps([name, items])
            (figures,) = in_processes(1, *sys.argv[1:], "--case", sent)
            report["cases"][case] = {"items": items, "model": name, **figures}
            print(json.dumps(report["cases"][case]), flush=True)
            write_json(out, report)


if __name__ == "__main__":
    main()
