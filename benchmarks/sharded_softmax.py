"""The softmax over items that are spread over processes: posrec's own against torch's `loss_parallel`.

    python benchmarks/sharded_softmax.py                     # results/sharded_softmax.json
    python benchmarks/sharded_softmax.py --items 50000 --batch 128       # smaller, where time is short

Both start from the session vectors of each process's own samples and end with the gradients of these and of the
process's item vectors. `loss_parallel` (torch.distributed.tensor) gets the session vectors gathered, the item vectors
as a DTensor sharded by rows, and their product, which is then sharded by columns. Every case runs in processes of its
own, one thread each. `cpu_seconds` is the time that a process spent working, so that a busy machine does not
disturb it; memory is the peak on top of what the process held before its first step. Losses and gradients are compared.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness import command, conditions, in_processes, parser_for, peak_mb
from posrec.distributed import joined
from posrec.io import write_json
from posrec.nn.sharding import ShardedRows
from posrec.training.losses import CHUNK
from posrec.training.sharded_softmax import sharded_cross_entropy

CASES = ("loss_parallel", "at once", "in chunks")
STEPS = 5


def loss_parallel_step(sessions: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    """The mean loss over all samples, by torch.distributed.tensor; the backward pass is run."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    everyone = DTensor.from_local(sessions, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    scores = everyone @ DTensor.from_local(table, mesh, [Shard(0)]).T  # [B, n], sharded by columns
    all_targets = DTensor.from_local(targets, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    with loss_parallel():
        loss = functional.cross_entropy(scores, all_targets - 1)
        loss.backward()
    return loss.full_tensor().detach()


def own_step(rows: ShardedRows, chunk: int | None, sessions: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    losses = sharded_cross_entropy(rows, rows.items, chunk, sessions, table, targets)
    (losses.sum() / (len(losses) * rows.world.size)).backward()
    return rows.world.summed(losses.detach().sum()) / (len(losses) * rows.world.size)


def run_case(case: str, items: int, d: int, batch: int) -> dict[str, Any]:
    with joined("cpu") as world:
        assert world is not None
        torch.manual_seed(0)
        rows = ShardedRows(items, world)
        size = batch // world.size
        part = slice(world.rank * size, (world.rank + 1) * size)
        sessions, targets = torch.randn(batch, d)[part].clone(), torch.randint(1, items + 1, (batch,))[part].clone()
        table = torch.randn(items, d)[rows.start : rows.end].clone() / d**0.5
        own = partial(own_step, rows, CHUNK if case == "in chunks" else None)
        step: Callable[[Tensor, Tensor, Tensor], Tensor] = loss_parallel_step if case == "loss_parallel" else own
        before, seconds, working = peak_mb(), [], []
        for _ in range(STEPS + 1):
            sessions, table = sessions.detach().requires_grad_(), table.detach().requires_grad_()
            began, worked = time.perf_counter(), time.process_time()
            loss = step(sessions, table, targets)
            seconds.append(time.perf_counter() - began)
            working.append(time.process_time() - worked)
        assert sessions.grad is not None
        assert table.grad is not None
        return {
            "seconds": round(statistics.median(seconds[1:]), 3),
            "cpu_seconds": round(statistics.median(working[1:]), 3),
            "mb": round(peak_mb() - before),
            "loss": float(loss),
            "gradients": [float(sessions.grad.norm()), float(table.grad.norm())],
        }


def main() -> None:
    parser = parser_for(__doc__, "results/sharded_softmax.json")
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--d", type=int, default=100)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = {"items": arguments.items, "d": arguments.d, "batch": arguments.batch}
    if arguments.case:
        print(json.dumps(run_case(arguments.case, **sizes)))
        return
    sent = [part for name, value in sizes.items() for part in (f"--{name}", value)]
    found = {case: in_processes(__file__, arguments.processes, *sent, "--case", case) for case in CASES}
    first = found[CASES[0]]
    for case, ranks in found.items():
        for like, rank in zip(first, ranks, strict=True):
            worst = max(
                abs(one - other) / abs(other)
                for one, other in zip(
                    [rank["loss"], *rank["gradients"]], [like["loss"], *like["gradients"]], strict=True
                )
            )
            assert worst < 1e-4, (case, worst)
        seconds, memory = (max(rank[name] for rank in ranks) for name in ("cpu_seconds", "mb"))
        ratio = seconds / max(rank["cpu_seconds"] for rank in first)
        print(f"{case}: {seconds:.3f} s of work a step ({ratio:.2f} of {CASES[0]}'s), {memory:,} MB at the peak")
    about = {"command": command(), **sizes, "processes": arguments.processes,
             "steps": STEPS, "seed": 0, **conditions(), "threads": 1}  # fmt: skip
    cases = {
        case: {name: max(rank[name] for rank in ranks) for name in ("seconds", "cpu_seconds", "mb")}
        for case, ranks in found.items()
    }
    write_json(arguments.out, {"about": about, "cases": cases})


if __name__ == "__main__":
    main()
