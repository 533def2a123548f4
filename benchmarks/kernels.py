"""Where the time of a training step on a GPU goes, kernel by kernel.

    python benchmarks/kernels.py prepared/diginetica --model posrec

The step's own time is measured over many replays of its captured graph, without a profiler, which makes each kernel
start later. Kernels are those of one replay of 32 steps; kernels of the same kind are added up. Some run beside others,
so all together take longer than the step.
"""

import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from harness import parser_for, write_row
from posrec.config import split_settings
from posrec.data.dataset import load
from posrec.models.base import SessionModel
from posrec.models.registry import find_spec
from posrec.training.adam import make_optimizer, set_learning_rate
from posrec.training.epoch import EpochOrder, EpochRunner, matmul_precision
from posrec.training.settings import Settings

# The first name that a kernel's own name contains is its kind.
KINDS = {
    "update_table": "gradient of the item table and its Adam",
    "parts_of_softmax": "softmax over all items and its gradient",
    "join_parts": "softmax over all items and its gradient",
    "log_sum_kernel": "softmax over all items and its gradient",
    "changes_kernel": "softmax over all items and its gradient",
    "smooth_kernel": "smoothing of the item vectors",
    "attention": "attention",
    "gemm": "matrix products of cuBLAS",
    "nvjet": "matrix products of cuBLAS",
    "splitKreduce": "matrix products of cuBLAS",
    "cutlass": "matrix products of cuBLAS",
    "FusedOptimizer": "Adam of the other weights",
    "triton_for": "Adam of the other weights",
    "triton_": "element by element, fused by torch.compile",
}
OTHERS = "all others: gathering the samples, graphs of long sessions, copies, sums"
WARM_UP = 64  # steps


def main() -> None:
    parser = parser_for(__doc__, "results/kernels.json")
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", default="posrec")
    parser.add_argument("--steps", type=int, default=1920, help="how many to time")
    options = parser.parse_args()
    data, device, spec = load(options.dataset), torch.device("cuda"), find_spec(options.model)
    config, settings = split_settings({}, spec.config(), Settings(**spec.settings))
    model = spec.build(data.train_items, config)
    assert isinstance(model, SessionModel)
    model.count(data.train.items, data.train.offsets)
    model.to(device).train()
    with matmul_precision(settings, device, data.train_items):
        optimizer = make_optimizer(model, settings, device)
        samples = data.train.to(device)
        runner = EpochRunner(model, optimizer, samples, settings, device, data.train_items, config.max_length)
        order = runner.shuffle(0)
        set_learning_rate(optimizer, settings.learning_rate / 10)
        timed(runner, order, min(WARM_UP, order.steps))
        seconds = timed(runner, order, min(options.steps, order.steps))
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            steps = len(runner.run(order, 0))
            torch.cuda.synchronize()
    kinds: dict[str, list[float]] = {}
    for event in found.key_averages():
        kind = next((about for name, about in KINDS.items() if name in event.key), OTHERS)
        total = kinds.setdefault(kind, [0.0, 0.0])
        total[0] += event.self_device_time_total / steps
        total[1] += event.count / steps
    report = {
        "dataset": options.dataset.name,
        "model": options.model,
        "batch_size": settings.batch_size,
        "microseconds_a_step": round(1e6 * seconds, 1),
        "steps_an_epoch": order.steps,
        "kernels": [
            {"kind": kind, "microseconds": round(time_of, 1), "launches": round(count, 1)}
            for kind, (time_of, count) in sorted(kinds.items(), key=lambda one: -one[1][0])
        ],
    }
    write_row(options.out, report, ("dataset", "model"))


def timed(runner: EpochRunner, order: EpochOrder, steps: int) -> float:
    """Seconds a step."""
    torch.cuda.synchronize()
    began, step = time.perf_counter(), 0
    while step < steps:
        step += len(runner.run(order, step))
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / step


if __name__ == "__main__":
    main()
