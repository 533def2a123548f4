"""Memory of each process when an item table is spread over 1, 2 and 4 of them.

    python benchmarks/sharded_memory.py                      # results/sharded_memory.json
    python benchmarks/sharded_memory.py --items 100000       # smaller, where memory is short

PosRec takes two training steps over a generated log, with gloo on a CPU and one thread for each process. `tensors_mb`
is what a process holds between steps: its rows of the item table, their gradient and Adam's two moments, beside the
network, which is small. `peak_mb` is the most memory that the process held on top of what it held before the model was
built; it includes temporary copies of the gradient. All processes of a case are on one machine, which has to hold the
table once. --case is for the processes that the script starts.
"""

import json
import sys
from typing import Any

import torch

from harness import in_processes, options, peak_mb, write_result
from posrec.data.dataset import SessionDataset
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.adam import make_optimizer
from posrec.training.distributed.rows import keep_own_rows
from posrec.training.distributed.world import joined
from posrec.training.epoch import EpochRunner
from posrec.training.settings import Settings

STEPS, BATCH, LENGTH = 2, 64, 10


def run_case(items: int, d: int, loss: str) -> dict[str, Any]:
    with joined("cpu") as world:
        torch.manual_seed(0)
        clicks = torch.randint(1, items + 1, (STEPS * BATCH * LENGTH,), dtype=torch.int32)
        offsets = torch.arange(0, len(clicks) + 1, LENGTH)
        samples = SessionDataset(clicks, offsets, torch.arange(len(offsets) - 1))
        settings, device = Settings(batch_size=BATCH, loss=loss), torch.device("cpu")
        before = peak_mb()
        model = keep_own_rows(PosRec(items, PosRecConfig(d=d, max_length=LENGTH)), world)
        optimizer = make_optimizer(model, settings, device)
        runner = EpochRunner(model, optimizer, samples, settings, device, items, LENGTH)
        order = runner.shuffle(0)
        for step in range(STEPS):
            world.summed(runner.run(order, step))
        held = [one for weights in model.parameters() for one in (weights, weights.grad) if one is not None]
        held += [one for state in optimizer.state.values() for one in state.values()]
        return {
            "rows": len(model.embedding.rows),
            "tensors_mb": round(sum(one.numel() * one.itemsize for one in held) / 2**20),
            "peak_mb": round(peak_mb() - before),
        }


def main() -> None:
    given = options(__doc__, "results/sharded_memory.json", items=10_000_000, d=100, loss="chunked", case=False)
    if given.case:
        print(json.dumps(run_case(given.items, given.d, given.loss)))
        return
    cases = {}
    for processes in (1, 2, 4):
        ranks = in_processes(__file__, processes, *sys.argv[1:], "--case")
        cases[str(processes)] = {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    torch.set_num_threads(1)  # as the processes have
    sizes = {"items": given.items, "d": given.d, "loss": given.loss, "batch": BATCH, "steps": STEPS}
    write_result(given.out, {**sizes, "seed": 0, "processes": cases})


if __name__ == "__main__":
    main()
