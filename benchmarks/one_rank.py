"""One process of a training over several (docs/distributed.md) against the usual training: time and memory of a step.

    python benchmarks/one_rank.py --device cuda              # results/one_rank.json

A single process holds the whole table and has nothing to send, so what it takes longer is the price of the path itself.
"through NCCL" makes it send everything to itself, as one of several would. Items are drawn uniformly, sessions have ten
clicks. On a CPU, time is that of the processor.
"""

import argparse
import json
import statistics
from typing import Any

import torch

from growth import clock, make_sessions
from harness import command, conditions, in_processes, parser_for, peak_mb
from posrec.config import split_settings
from posrec.distributed import joined
from posrec.fitting import build_model
from posrec.io import write_json
from posrec.models.base import SessionModel
from posrec.models.lookup import find_spec
from posrec.nn.collectives import World
from posrec.training.adam import make_optimizer, set_learning_rate
from posrec.training.epoch import EpochRunner, matmul_precision
from posrec.training.settings import Settings

CASES = [
    (model, items, batch) for items in (43_000, 1_000_000) for model, batch in (("posrec", 100), ("posrec-plus", 1024))
]
WARM_UP, TIMED = 64, 320  # steps


class Talking(World):
    """A process alone that communicates all the same."""

    is_alone = False


def main() -> None:
    parser = parser_for(__doc__, "results/one_rank.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", type=int, nargs="*", default=list(range(len(CASES))))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--talking", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        model, items, batch = json.loads(options.case)
        print(json.dumps(steps_of(model, items, batch, options.device, Talking if options.talking else World)))
        return
    rows = []
    for model, items, batch in (CASES[number] for number in options.cases):
        case = json.dumps([model, items, batch])
        line = ("--device", options.device, "--case", case)
        (sharded,), (talking,) = in_processes(__file__, 1, *line), in_processes(__file__, 1, *line, "--talking")
        plain = steps_of(model, items, batch, options.device)
        row = {"model": model, "items": items, "batch_size": batch, "plain": plain}
        for name, found in (("one rank", sharded), ("through NCCL", talking)):
            row |= {name: found, f"times, {name}": round(found["step_ms"] / plain["step_ms"], 3)}
        rows.append(row)
        print(json.dumps(rows[-1]), flush=True)
        write_json(options.out, {"command": command(), **conditions(), "rows": rows})


def steps_of(name: str, items: int, batch: int, device_name: str, kind: type[World] = World) -> dict[str, Any]:
    device, spec = torch.device(device_name), find_spec(name)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()  # of the case before
    config, settings = split_settings({"batch_size": batch}, spec.config(), Settings(**spec.settings))
    samples = make_sessions({"items": items, "length": 10, "sessions": batch * (WARM_UP + TIMED) // 10})
    with joined(device_name) as world, matmul_precision(settings, device, items):
        model = build_model(spec, items, config, world and kind(world.rank, world.size))
        assert isinstance(model, SessionModel)
        model.count(samples.items, samples.offsets)
        model.to(device).train()
        optimizer = make_optimizer(model, settings, device)
        runner = EpochRunner(model, optimizer, samples.to(device), settings, device, items, config.max_length)
        order = runner.shuffle(0)
        set_learning_rate(optimizer, 1e-5)
        step, taken = 0, []
        while step < order.steps:
            began = clock(device)
            done = len(runner.run(order, step))
            step += done
            if step > WARM_UP:
                taken += [(clock(device) - began) / done] * done
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else peak_mb() / 1024
    return {"step_ms": round(1000 * statistics.median(taken), 3), "peak_gb": round(peak, 2)}


if __name__ == "__main__":
    main()
