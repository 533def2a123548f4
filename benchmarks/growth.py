"""How time and memory of a training step and of evaluation grow with items, session length and number of sessions.

    python benchmarks/growth.py --device cpu                 # or cuda; both into one results/growth.json
    python benchmarks/growth.py --device cpu --batch 20 --steps 2        # smaller, where time is short

One size is varied at a time. Every cell runs in a process of its own, so that its peak of memory is its own, and is
written when it is done; a cell that is there is not run again. On a CPU time is what one thread spent working, so that
a busy machine does not disturb it, and memory is what comes on top of the bare process; on a GPU time is what the clock
says, and memory what torch holds. The plot has a line of slope 1 through each first point; a slope is that of the
least-squares line through the logarithms.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness import command, conditions, in_processes, parser_for, peak_mb
from posrec.data.dataset import SessionDataset
from posrec.evaluation.evaluate import evaluate
from posrec.experiments.rendering import new_figure
from posrec.io import read_json, write_json
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.adam import make_optimizer
from posrec.training.epoch import EpochRunner, matmul_precision
from posrec.training.settings import Settings

BASE = {"items": 10_000, "length": 10, "sessions": 10_000}
AXES = {
    "items": [10_000, 100_000, 1_000_000],
    "length": [10, 50, 200],
    "sessions": [10_000, 100_000, 1_000_000],
}
MEASURES = {"step": ("step_ms", "step_mb"), "evaluation": ("evaluation_ms", "evaluation_mb")}
NAMES = {"step_ms": "a step", "evaluation_ms": "ranking 1,000", "step_mb": "a step", "evaluation_mb": "ranking 1,000"}
EVALUATED = 1000


def make_sessions(sizes: dict[str, int]) -> SessionDataset:
    """Sessions of `length` clicks and one more to predict; items are drawn uniformly."""
    random = torch.Generator().manual_seed(0)
    count, clicks = sizes["sessions"], sizes["length"] + 1
    items = torch.randint(1, sizes["items"] + 1, (count * clicks,), generator=random, dtype=torch.int32)
    return SessionDataset(items, torch.arange(0, count * clicks + 1, clicks), torch.arange(count))


def measure(kind: str, sizes: dict[str, int], device: torch.device, batch: int, steps: int) -> dict[str, float]:
    """The milliseconds and the peak memory of one measurement; run in a process of its own."""
    torch.manual_seed(0)
    before = peak_mb()
    samples = make_sessions(sizes).to(device)
    model = PosRec(sizes["items"], PosRecConfig(max_length=sizes["length"])).to(device)
    if kind == "step":
        taken = time_steps(model, samples, sizes, device, batch, steps)
    else:
        taken = [time_evaluation(model, samples, sizes, device)]
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_reserved() / 2**20 if on_gpu else peak_mb() - before
    name_ms, name_mb = MEASURES[kind]
    return {name_ms: round(1000 * statistics.median(taken), 3), name_mb: round(peak, 1)}


def time_steps(
    model: PosRec, samples: SessionDataset, sizes: dict[str, int], device: torch.device, batch: int, steps: int
) -> list[float]:
    """Seconds for a training step; the first steps, which compile and allocate memory, are not counted."""
    settings, taken = Settings(batch_size=batch), []
    model.train()
    with matmul_precision(settings, device, sizes["items"]):
        optimizer = make_optimizer(model, settings, device)
        runner = EpochRunner(model, optimizer, samples, settings, device, sizes["items"], sizes["length"])
        order, at = runner.shuffle(0), 0
        for turn in range(steps + 1):
            began = clock(device)
            done = len(runner.run(order, at))
            if turn:
                taken.append((clock(device) - began) / done)
            at += done
    return taken


def time_evaluation(model: PosRec, samples: SessionDataset, sizes: dict[str, int], device: torch.device) -> float:
    """Seconds to rank all items for EVALUATED samples."""
    wanted = -(-EVALUATED // sizes["length"])
    clicks = torch.ones(sizes["items"] + 1)
    model.eval()
    part = samples.part(samples.sessions - wanted, samples.sessions)
    for _ in range(2):  # the first warms up: it compiles what so many samples need
        began = clock(device)
        evaluate(model, part, sizes["items"], sizes["length"], clicks)
        seconds = clock(device) - began
    return seconds * EVALUATED / len(part)


def clock(device: torch.device) -> float:
    """The time in seconds: CPU time on a CPU; on a GPU the time after all its work is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def cells() -> list[tuple[str, int, dict[str, int]]]:
    return [(axis, value, {**BASE, axis: value}) for axis, values in AXES.items() for value in values]


def name_of(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def run_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure everything that is not in the results yet, and write each result as soon as it is there."""
    report: dict[str, Any] = read_json(arguments.out) if arguments.out.exists() else {}
    kept = report.setdefault(arguments.device, {})
    about = {
        "command": command(),
        "seed": 0,
        "batch": arguments.batch,
        "steps": arguments.steps,
        "d": PosRecConfig().d,
        **conditions(),
        "threads": 1,
    }
    if kept.setdefault("about", about)["batch"] != arguments.batch:
        sys.exit(f"{arguments.out} was measured with --batch {kept['about']['batch']}; use that, or another --out")
    found = kept.setdefault("cells", {})
    for _, _, sizes in cells():
        cell = found.setdefault(name_of(sizes), {})
        for kind, (name_ms, name_mb) in MEASURES.items():
            if name_ms not in cell:
                sent = json.dumps({"kind": kind, "sizes": sizes})
                cell.update(in_processes(__file__, 1, *sys.argv[1:], "--cell", sent)[0])
                print(f"{name_of(sizes)}: {kind} {cell[name_ms]:.1f} ms, {cell[name_mb]:,.0f} MB", flush=True)
                write_json(arguments.out, report)
    kept["slopes"] = {
        axis: {measure: round(slope(*course(found, axis, measure)), 2) for measure in NAMES} for axis in AXES
    }
    write_json(arguments.out, report)
    return report


def course(found: dict[str, Any], axis: str, measure: str) -> tuple[list[float], list[float]]:
    """The sizes of an axis, and the measurement at each."""
    values = [(value, found[name_of(sizes)][measure]) for name, value, sizes in cells() if name == axis]
    return [float(size) for size, _ in values], [float(measured) for _, measured in values]


def slope(sizes: list[float], measured: list[float]) -> float:
    return statistics.linear_regression([*map(math.log, sizes)], [math.log(max(one, 1e-9)) for one in measured]).slope


def draw(report: dict[str, Any], path: Path) -> None:
    figure, panels = new_figure(2, len(AXES), (13, 7))
    for column, axis in enumerate(AXES):
        for row, (unit, what) in enumerate([("ms", "milliseconds"), ("mb", "MB at the peak")]):
            panel = panels[row][column]
            for device in (name for name in ("cpu", "cuda") if "slopes" in report.get(name, {})):
                for color, measure in zip(("C0", "C1"), (name for name in NAMES if name.endswith(unit)), strict=True):
                    sizes, measured = course(report[device]["cells"], axis, measure)
                    label = f"{NAMES[measure]}, {device}: slope {report[device]['slopes'][axis][measure]:.2f}"
                    style = "-" if device == "cpu" else "--"
                    panel.loglog(sizes, measured, style, color=color, marker="o", label=label)
                    guide = [measured[0] * size / sizes[0] for size in sizes]
                    panel.loglog(sizes, guide, ":", color="grey", linewidth=1)
            panel.set(xlabel=axis, ylabel=what)
            panel.legend(fontsize=8)
    title = "PosRec, d = 100: one size varied, the others at {items:,} items, length {length}, {sessions:,} sessions. "
    figure.suptitle(title.format(**BASE) + "Dotted: slope 1.", fontsize=11)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = parser_for(__doc__, "results/growth.json")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5, help="timed steps a cell; on a GPU, replays of many steps each")
    parser.add_argument("--plot", type=Path, default=Path("docs/figures/growth.png"))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        cell = json.loads(arguments.cell)
        device = torch.device(arguments.device)
        torch.set_num_threads(1)
        print(json.dumps(measure(cell["kind"], cell["sizes"], device, arguments.batch, arguments.steps)))
        return
    draw(run_all(arguments), arguments.plot)


if __name__ == "__main__":
    main()
