"""The counting models on a CPU: how long counting takes, ranking the whole test part, and one
session alone.

    python -m benchmarks.speed.neighbours --data prepared/diginetica

One session alone (--sessions of them, in turn) is scored over all items and its best 20 taken, as a
server would. Times are wall clock; the CPU seconds beside them say what the machine's other work
cost."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.measuring import in_turns
from benchmarks.harness.results import options, write_result
from posrec.data.dataset import PreparedDataset, collate, load
from posrec.evaluation.evaluate import evaluate
from posrec.models.base import Model
from posrec.models.registry import MODELS

COUNTING = ("spop", "itemknn", "vsknn", "stan", "coclick")
BEST = 20
WARM_UP = 10


def timed(work: Callable[[], Any]) -> dict[str, float]:
    wall = time.perf_counter()
    cpu = time.process_time()
    work()
    return {
        "seconds": round(time.perf_counter() - wall, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
    }


@torch.inference_mode()
def one_by_one(
    model: Model, data: PreparedDataset, max_length: int, sessions: int
) -> dict[str, float]:
    """Milliseconds for one session, over samples spread over the whole test part."""
    chosen = torch.linspace(0, len(data.test) - 1, sessions).long()
    batches = [
        collate(data.test, sample[None], max_length).trimmed() for sample in chosen
    ]

    def work(turn: int) -> None:
        model.scores(batches[max(0, turn - WARM_UP)]).topk(BEST)

    taken = sorted(in_turns({"one": work}, sessions, WARM_UP)["one"])
    return {
        "median_ms": round(statistics.median(taken), 2),
        "p95_ms": round(taken[int(0.95 * len(taken))], 2),
    }


def measure(name: str, data: PreparedDataset, sessions: int) -> dict[str, Any]:
    config = MODELS[name].config()
    model: Any = MODELS[name].build(data.train_items, config).eval()
    clicks = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    return {
        "settings": asdict(config),
        "count": timed(lambda: model.count(data.train.items, data.train.offsets)),
        "evaluate": timed(
            lambda: evaluate(
                model, data.test, data.train_items, config.max_length, clicks
            )
        ),
        "one_session": one_by_one(model, data, config.max_length, sessions),
    }


def main() -> None:
    arguments = options(
        __doc__,
        "results/neighbours.json",
        data=Path("prepared/diginetica"),
        sessions=500,
    )
    data = load(arguments.data)
    report = {
        "dataset": data.fingerprint,
        "items": data.train_items,
        "samples": len(data.test),
        "models": {name: measure(name, data, arguments.sessions) for name in COUNTING},
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
