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

from harness import Training, generated_sessions, in_processes, options, peak_mb, write_result
from posrec.training.distributed.rows import keep_own_rows
from posrec.training.distributed.world import joined
from posrec.training.settings import Settings

STEPS, BATCH, LENGTH, SESSIONS = 2, 64, 10, 128


def run_case(items: int) -> dict[str, Any]:
    with joined("cpu") as world:
        before = peak_mb()
        settings, samples = Settings(batch_size=BATCH, loss="chunked"), generated_sessions(items, LENGTH, SESSIONS)
        training = Training(samples, items, settings, LENGTH, spread=lambda model: keep_own_rows(model, world))
        for step in range(STEPS):
            world.summed(training.run(step))
        held = [one for weights in training.model.parameters() for one in (weights, weights.grad) if one is not None]
        held += [one for state in training.optimizer.state.values() for one in state.values()]
        return {
            "rows": len(training.model.embedding.rows),
            "tensors_mb": round(sum(one.numel() * one.itemsize for one in held) / 2**20),
            "peak_mb": round(peak_mb() - before),
        }


def main() -> None:
    given = options(__doc__, "results/sharded_memory.json", items=10_000_000, case=False)
    if given.case:
        print(json.dumps(run_case(given.items)))
        return
    cases = {}
    for processes in (1, 2, 4):
        ranks = in_processes(__file__, processes, *sys.argv[1:], "--case")
        cases[str(processes)] = {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    torch.set_num_threads(1)  # as the processes have
    sizes = {"items": given.items, "d": 100, "loss": "chunked", "batch": BATCH, "steps": STEPS}
    write_result(given.out, {**sizes, "seed": 0, "processes": cases})


if __name__ == "__main__":
    main()
