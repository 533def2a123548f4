"""Time and memory of training with millions of items, by a softmax over sampled items.

    python benchmarks/large_catalogue.py                 # on a GPU; results/large_catalogue.json
    python benchmarks/large_catalogue.py --device cpu --items 100000 --clicks 200000

The log is generated: sessions of five clicks, on items of which few are popular. Every case is a
process of its own (--case), and is written when it is done; a case that is there is not run again.
Settings are the model's defaults but for the loss and the batch. Seconds are those of training
steps after the first ones, which compile and allocate; memory is what torch holds at its peak.
"""

import json
import sys
import time
from typing import Any

import torch

from harness import CPU, command, conditions, in_processes, options, peak_mb
from posrec.data.dataset import SessionDataset
from posrec.io import read_json, write_json
from posrec.models.base import SessionModel
from posrec.models.registry import MODELS
from posrec.training.adam import make_optimizer
from posrec.training.epoch import EpochRunner, matmul_precision
from posrec.training.settings import Settings

LENGTH = 5  # clicks of a session
SKEW = 3  # an item's number is that of a uniform draw to this power
ITEMS = (1_000_000, 10_000_000)
MODEL_NAMES = ("posrec", "posrec-plus")
# steps
WARM_UP = 64
TIMED = 512


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
    on_gpu = device.type == "cuda"
    peak = (
        torch.cuda.max_memory_reserved() / 1e9 if on_gpu else (peak_mb() - before) / 1e3
    )
    return {
        "d": model.config.d,
        "steps": step - first,
        "ms_a_step": round(1000 * seconds / (step - first), 3),
        "seconds_a_million_clicks": round(1e6 * seconds / trained, 3),
        "memory_gb": round(peak, 1),
    }


def clock(device: torch.device) -> float:
    """Seconds, after all work of a GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    given = options(
        __doc__,
        "results/large_catalogue.json",
        device="cuda",
        items=0,
        clicks=10_000_000,
        batch=4096,
        case="",
    )
    device = CPU if given.device == "cpu" else torch.device("cuda")
    if given.case:
        name, items = json.loads(given.case)
        print(json.dumps(measure(name, items, given.clicks, given.batch, device)))
        return
    report = read_json(given.out) if given.out.exists() else {"cases": {}}
    report |= {
        "command": command(),
        "loss": "sampled",
        "batch": given.batch,
        **conditions(),
    }
    report |= {"clicks": given.clicks, "seed": 0}
    for items in (given.items,) if given.items else ITEMS:
        for name in MODEL_NAMES:
            case = f"{name}, {items} items"
            if case in report["cases"]:
                continue
            sent = json.dumps([name, items])
            (found,) = in_processes(__file__, 1, *sys.argv[1:], "--case", sent)
            report["cases"][case] = {"items": items, "model": name, **found}
            print(json.dumps(report["cases"][case]), flush=True)
            write_json(given.out, report)


if __name__ == "__main__":
    main()
