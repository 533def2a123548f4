"""A training step on a CPU against the least it must do, side by side.

    python benchmarks/step.py --data prepared/diginetica --out results/step.json
    python benchmarks/step.py --bf16 --out results/step_bf16.json            # where the CPU has instructions for it

The least: the softmax over all items forward and backward and Adam over the item table, nothing of the model; and of
that the three products alone, the scores and the gradients of sessions and table. The ratio
says what the model, its graphs and its bookkeeping cost on top; it hardly depends on the machine, the milliseconds do.
Then the whole test part is ranked once.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from conditions import conditions
from posrec.data.dataset import load
from posrec.evaluation.evaluate import evaluate
from posrec.io import write_json
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.losses import full_softmax
from posrec.training.step import Stepper

BATCH = 100


def milliseconds(step: Callable[[int], object], steps: int, first: int) -> float:
    began = time.perf_counter()
    for number in range(first, first + steps):
        step(number)
    return 1000 * (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("prepared/diginetica"))
    parser.add_argument("--out", type=Path, default=Path("results/step.json"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--bf16", action="store_true", help="products of the whole step from rounded numbers")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = load(arguments.data)
    model = PosRec(data.train_items, PosRecConfig())
    adam = torch.optim.Adam(model.parameters(), lr=0.001, weight_decay=1e-5, fused=True)
    stepper = Stepper(model, adam, data.train, full_softmax(data.train_items), BATCH, model.config.max_length,
                      bf16=arguments.bf16)  # fmt: skip
    order, weights = torch.randperm(len(data.train)), torch.ones(BATCH)

    table = torch.nn.Parameter(torch.randn(len(model.embedding.weight), model.config.d) * 0.1)
    least_adam = torch.optim.Adam([table], lr=0.001, weight_decay=1e-5, fused=True)
    sessions, targets = torch.randn(BATCH, model.config.d), torch.randint(1, data.train_items + 1, (BATCH,))
    sessions.requires_grad_()
    loss = full_softmax(data.train_items)

    def step(number: int) -> None:
        stepper.run(order[number * BATCH : (number + 1) * BATCH], weights)

    def least(_: int) -> None:
        least_adam.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            losses = loss(sessions, table, targets)
        losses.mean().backward()
        least_adam.step()

    @torch.no_grad()
    def products(_: int) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            scores = sessions @ table.T
            scores @ table
            scores.T @ sessions

    for number in range(3):
        step(number)
        least(number)
        products(number)
    rounds = [
        (milliseconds(step, arguments.steps, 3 + turn * arguments.steps),
         milliseconds(least, arguments.steps, 0), milliseconds(products, arguments.steps, 0))
        for turn in range(arguments.rounds)
    ]  # fmt: skip
    clicks = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    began = time.perf_counter()
    evaluate(model.eval(), data.test, data.train_items, model.config.max_length, clicks)
    ranking = time.perf_counter() - began
    report = {
        "command": " ".join(["python benchmarks/step.py", *sys.argv[1:]]),
        "seed": 0,
        "dataset": data.fingerprint,
        "items": data.train_items,
        "step_ms": round(statistics.median(one for one, _, _ in rounds), 1),
        "least_ms": round(statistics.median(other for _, other, _ in rounds), 1),
        "products_ms": round(statistics.median(bare for *_, bare in rounds), 1),
        "ratio": round(statistics.median(one / other for one, other, _ in rounds), 2),
        "test_samples": len(data.test),
        "evaluate_seconds": round(ranking, 1),
        **conditions(),
    }
    write_json(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
