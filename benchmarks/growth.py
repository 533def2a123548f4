"""How time and memory of a training step and of ranking grow with items, session length and number
of sessions.

    python benchmarks/growth.py --device cpu                 # or cuda; both into one results/growth.json

One size is varied at a time. Every cell runs in a process of its own (--cell), so that its peak of
memory is its own, and is written when it is done; a cell that is there is not run again. On a CPU
time is what one thread spent working, so that a busy machine does not disturb it, and memory is
what comes on top of the bare process; on a GPU time is what the clock says, and memory what torch
holds. The plot has a line of slope 1 through each first point; a slope is that of the least-squares
line through the logarithms."""

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness import (
    Training,
    command,
    conditions,
    generated_sessions,
    in_processes,
    options,
    peak_mb,
)
from posrec.evaluation.evaluate import evaluate
from posrec.experiments.rendering import new_figure
from posrec.io import read_json, write_json
from posrec.training.epoch import matmul_precision
from posrec.training.settings import Settings

BASE = {"items": 10_000, "length": 10, "sessions": 10_000}
AXES = {
    "items": [10_000, 100_000, 1_000_000],
    "length": [10, 50, 200],
    "sessions": [10_000, 100_000, 1_000_000],
}
KINDS = {"step": "a step", "evaluation": "ranking 1,000"}
UNITS = {"ms": "milliseconds", "mb": "MB at the peak"}
# sessions of a step; timed steps, on a GPU replays of many steps each
BATCH = 100
STEPS = 5
RANKED = 1000


def measure(kind: str, sizes: dict[str, int], device: torch.device) -> dict[str, float]:
    """The median milliseconds and the peak memory of a step, or of ranking all items for RANKED
    samples. What runs first, and compiles and allocates memory, is not counted."""
    torch.set_num_threads(1)
    before = peak_mb()
    settings = Settings(batch_size=BATCH)
    items = sizes["items"]
    length = sizes["length"]
    taken = []
    place = 0
    with matmul_precision(settings, device, items):
        training = Training(
            generated_sessions(**sizes), items, settings, length, device
        )
        ranked = training.samples.part(
            sizes["sessions"] - -(-RANKED // length), sizes["sessions"]
        )
        for _ in range(STEPS + 1 if kind == "step" else 2):
            began = clock(device)
            if kind == "step":
                done = len(training.run(place))
                place += done
            else:
                evaluate(
                    training.model.eval(), ranked, items, length, torch.ones(items + 1)
                )
                done = len(ranked) / RANKED
            taken.append((clock(device) - began) / done)
    peak = (
        torch.cuda.max_memory_reserved() / 2**20
        if device.type == "cuda"
        else peak_mb() - before
    )
    return {
        f"{kind}_ms": round(1000 * statistics.median(taken[1:]), 3),
        f"{kind}_mb": round(peak, 1),
    }


def clock(device: torch.device) -> float:
    """The time in seconds: CPU time on a CPU; on a GPU the time after all its work is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def name_of(axis: str, value: int) -> str:
    return " ".join(f"{name}={size}" for name, size in {**BASE, axis: value}.items())


def draw(report: dict[str, Any], path: Path) -> None:
    figure, panels = new_figure(2, len(AXES), (13, 7))
    for column, (axis, sizes) in enumerate(AXES.items()):
        for panel, (unit, what) in zip(
            (row[column] for row in panels), UNITS.items(), strict=True
        ):
            for device, style in (("cpu", "-"), ("cuda", "--")):
                for kind, about in KINDS.items() if device in report else ():
                    values = [
                        report[device]["cells"][name_of(axis, size)][f"{kind}_{unit}"]
                        for size in sizes
                    ]
                    logs = [
                        [math.log(max(one, 1e-9)) for one in numbers]
                        for numbers in (sizes, values)
                    ]
                    label = f"{about}, {device}: slope {statistics.linear_regression(*logs).slope:.2f}"
                    panel.loglog(
                        sizes,
                        values,
                        f"o{style}",
                        color=f"C{list(KINDS).index(kind)}",
                        label=label,
                    )
                    guide = [values[0] * size / sizes[0] for size in sizes]
                    panel.loglog(sizes, guide, ":", color="grey", linewidth=1)
            panel.set(xlabel=axis, ylabel=what)
            panel.legend(fontsize=8)
    title = "PosRec, d = 100: one size varied, the others at {items:,} items, length {length}, {sessions:,} sessions. "
    figure.suptitle(title.format(**BASE) + "Dotted: slope 1.", fontsize=11)
    figure.savefig(path, dpi=130)


def main() -> None:
    given = options(__doc__, "results/growth.json", device="cpu", cell="")
    if given.cell:
        kind, sizes = json.loads(given.cell)
        print(json.dumps(measure(kind, sizes, torch.device(given.device))))
        return
    report: dict[str, Any] = read_json(given.out) if given.out.exists() else {}
    about = {
        "command": command(),
        "seed": 0,
        "batch": BATCH,
        "steps": STEPS,
        **conditions(),
        "threads": 1,
    }
    cells = report.setdefault(given.device, {"about": about}).setdefault("cells", {})
    for axis, value in (
        (axis, value) for axis, values in AXES.items() for value in values
    ):
        cell = cells.setdefault(name_of(axis, value), {})
        for kind in (kind for kind in KINDS if f"{kind}_ms" not in cell):
            sent = json.dumps([kind, {**BASE, axis: value}])
            cell.update(in_processes(__file__, 1, *sys.argv[1:], "--cell", sent)[0])
            print(f"{name_of(axis, value)}: {kind}", cell, flush=True)
            write_json(given.out, report)
    draw(report, Path("docs/figures/growth.png"))


if __name__ == "__main__":
    main()
