"""Growth of time and memory, of a step and of ranking, with items, session length and sessions.

    python -m benchmarks.speed.growth --device cpu

One size is varied at a time; the results for cpu and for cuda are in one file. Every cell runs in
another process (--cell), which has its own peak of memory, and is written when it is done; a cell
in the file is not run again.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.inputs import generated_sessions
from benchmarks.harness.measuring import in_processes, peak_mb
from benchmarks.harness.results import command, conditions, options
from benchmarks.harness.training import Training
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
BATCH = 100  # sessions of a step
STEPS = 5  # timed steps, on a GPU replays of many steps each
RANKED = 1000


def measure(kind: str, sizes: dict[str, int], device: torch.device) -> dict[str, float]:
    """The median milliseconds and the peak memory of a step, or of ranking RANKED samples.

    The first run, which compiles and allocates memory, is not counted. Memory on a CPU is what
    the process holds more than before; on a GPU it is what torch holds.
    """
    torch.set_num_threads(1)
    before = peak_mb()
    settings = Settings(batch_size=BATCH)
    items = sizes["items"]
    length = sizes["length"]
    with matmul_precision(settings, device, items):
        sessions = generated_sessions(**sizes)
        training = Training(sessions, items, settings, length, device)
        if kind == "step":
            times = step_times(training, device)
        else:
            times = ranking_times(training, sizes, device)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved() / 2**20
    else:
        peak = peak_mb() - before
    return {
        f"{kind}_ms": round(1000 * statistics.median(times[1:]), 3),
        f"{kind}_mb": round(peak, 1),
    }


def step_times(training: Training, device: torch.device) -> list[float]:
    """Seconds a step."""
    times = []
    step = 0
    for _ in range(STEPS + 1):
        began = clock(device)
        steps = len(training.run(step))
        step += steps
        times.append((clock(device) - began) / steps)
    return times


def ranking_times(
    training: Training, sizes: dict[str, int], device: torch.device
) -> list[float]:
    """Seconds of ranking all items for RANKED samples."""
    items = sizes["items"]
    length = sizes["length"]
    first_session = sizes["sessions"] - math.ceil(RANKED / length)
    ranked = training.samples.part(first_session, sizes["sessions"])
    clicks = torch.ones(items + 1)
    times = []
    for _ in range(2):
        began = clock(device)
        evaluate(training.model.eval(), ranked, items, length, clicks)
        times.append((clock(device) - began) * RANKED / len(ranked))
    return times


def clock(device: torch.device) -> float:
    """Seconds: on a CPU the time that it worked, which other work on the machine does not change;
    on a GPU the time of the clock after all its work is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def name_of(axis: str, value: int) -> str:
    return " ".join(f"{name}={size}" for name, size in {**BASE, axis: value}.items())


def draw(report: dict[str, Any], path: Path) -> None:
    """One panel for each size and unit, with a dotted line of slope 1 through each first point."""
    figure, panels = new_figure(2, len(AXES), (13, 7))
    for column, axis in enumerate(AXES):
        for row, (unit, label) in enumerate(UNITS.items()):
            panel = panels[row][column]
            for device, style in (("cpu", "-"), ("cuda", "--")):
                if device in report:
                    draw_device(panel, report, device, style, axis, unit)
            panel.set(xlabel=axis, ylabel=label)
            panel.legend(fontsize=8)
    title = "PosRec, d = 100: one size varied, "
    title += "the others at {items:,} items, length {length}, {sessions:,} sessions. "
    figure.suptitle(title.format(**BASE) + "Dotted: slope 1.", fontsize=11)
    figure.savefig(path, dpi=130)


def draw_device(
    panel: Any, report: dict[str, Any], device: str, style: str, axis: str, unit: str
) -> None:
    sizes = AXES[axis]
    cells = [report[device]["cells"][name_of(axis, size)] for size in sizes]
    for number, (kind, about) in enumerate(KINDS.items()):
        values = [cell[f"{kind}_{unit}"] for cell in cells]
        label = f"{about}, {device}: slope {logarithmic_slope(sizes, values):.2f}"
        panel.loglog(sizes, values, f"o{style}", color=f"C{number}", label=label)
        guide = [values[0] * size / sizes[0] for size in sizes]
        panel.loglog(sizes, guide, ":", color="grey", linewidth=1)


def logarithmic_slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    x = [math.log(size) for size in sizes]
    y = [math.log(max(value, 1e-9)) for value in values]
    return statistics.linear_regression(x, y).slope


def main() -> None:
    arguments = options(__doc__, "results/growth.json", device="cpu", cell="")
    if arguments.cell:
        kind, sizes = json.loads(arguments.cell)
        print(json.dumps(measure(kind, sizes, torch.device(arguments.device))))
        return
    out = arguments.out
    report: dict[str, Any] = read_json(out) if out.exists() else {}
    about = {
        "command": command(),
        "seed": 0,
        "batch": BATCH,
        "steps": STEPS,
        **conditions(),
        "threads": 1,
    }
    of_device = report.setdefault(arguments.device, {"about": about})
    cells = of_device.setdefault("cells", {})
    for axis, values in AXES.items():
        for value in values:
            name = name_of(axis, value)
            cell = cells.setdefault(name, {})
            for kind in KINDS:
                if f"{kind}_ms" in cell:
                    continue
                sent = json.dumps([kind, {**BASE, axis: value}])
                cell.update(in_processes(1, *sys.argv[1:], "--cell", sent)[0])
                print(f"{name}: {kind}", cell, flush=True)
                write_json(out, report)
    draw(report, Path("docs/figures/growth.png"))


if __name__ == "__main__":
    main()
