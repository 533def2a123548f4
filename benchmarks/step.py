"""A training step on a CPU against the least it must do, and against a public implementation, side by side.

    python benchmarks/step.py --data prepared/diginetica --out results/step.json
    python benchmarks/step.py --peer SR-GNN/pytorch_code       # a clone of https://github.com/CRIPAC-DIG/SR-GNN

Steps at batch 100, in turns: PosRec with `precision=auto` and with `fp32`; the least of both, which is the softmax over
all items forward and backward and Adam over the item table, nothing of the model; and the peer's. The ratios depend
less on the machine than the milliseconds do. `products_ms` are the three products of the softmax alone: the scores and
the gradients of sessions and table. `bf16_new_shape_ms` is why nothing else is rounded to bf16 on a CPU: the time of a
small product of a shape that did not occur before. Then the whole test part is ranked once.
"""

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from harness import in_turns, parser_for, write_result
from posrec.data.dataset import PreparedDataset, load
from posrec.device import freed_memory_kept
from posrec.evaluation.evaluate import evaluate
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.nn.layers.matmul import table_products
from posrec.training.adam import make_optimizer
from posrec.training.epoch import EpochRunner, matmul_precision
from posrec.training.losses import full_softmax
from posrec.training.settings import Settings

BATCH, CPU = 100, torch.device("cpu")
Step = Callable[[int], object]


def posrec_step(data: PreparedDataset, precision: str) -> tuple[Step, PosRec]:
    torch.manual_seed(0)
    settings = Settings(batch_size=BATCH, precision=precision)
    model = PosRec(data.train_items, PosRecConfig())
    optimizer = make_optimizer(model, settings, CPU)
    runner = EpochRunner(model, optimizer, data.train, settings, CPU, data.train_items, model.config.max_length)
    order = runner.shuffle(0)
    return lambda number: runner.run(order, number), model


def least_step(model: PosRec, items: int) -> tuple[Step, Step]:
    """The softmax and Adam of the item table; and the products of the softmax alone."""
    table = torch.nn.Parameter(torch.randn_like(model.embedding.weight) * 0.1)
    adam = torch.optim.Adam([table], lr=0.001, weight_decay=1e-5, fused=True)
    sessions, targets = torch.randn(BATCH, model.config.d), torch.randint(1, items + 1, (BATCH,))
    sessions.requires_grad_()
    loss = full_softmax(items)

    def step(_: int) -> None:
        adam.zero_grad()
        loss(sessions, table, targets).mean().backward()
        adam.step()

    @torch.no_grad()
    def products(_: int) -> None:
        with table_products():
            scores = sessions @ table.T
            scores @ table
            scores.T @ sessions

    return step, products


def peer_step(code: Path, data: PreparedDataset) -> Step:
    """SR-GNN's public code as its main.py calls it, on the samples of the first 2,000 sessions."""
    sys.path.insert(0, str(code))
    modules = {name: importlib.import_module(name) for name in ("utils", "model")}
    part = data.train.part(0, 2000)
    inputs, targets = [], []
    for session in range(part.sessions):
        clicks = part.items[part.offsets[session] : part.offsets[session + 1]].tolist()
        for place in range(1, len(clicks)):
            inputs.append(clicks[:place])
            targets.append(clicks[place])
    options = SimpleNamespace(
        hiddenSize=100, batchSize=BATCH, nonhybrid=False, step=1, lr=0.001, l2=1e-5, lr_dc_step=3, lr_dc=0.1
    )
    model = modules["model"].SessionGraph(options, data.train_items + 1)
    np.random.seed(0)
    samples = modules["utils"].Data((inputs, targets), shuffle=True)
    slices = samples.generate_batch(BATCH)[:-1]

    def step(number: int) -> None:
        model.optimizer.zero_grad()
        wanted, scores = modules["model"].forward(model, slices[number % len(slices)], samples)
        model.loss_function(scores, torch.Tensor(wanted).long() - 1).backward()
        model.optimizer.step()

    return step


def new_shape_ms() -> float:
    torch.set_float32_matmul_precision("medium")
    weights, rows = torch.randn(100, 400), [torch.randn(count, 100) for count in range(301, 361)]
    taken = in_turns({"product": lambda turn: rows[turn] @ weights}, len(rows), warm_up=0)["product"]
    torch.set_float32_matmul_precision("highest")
    return statistics.median(taken)


def main() -> None:
    parser = parser_for(__doc__, "results/step.json")
    parser.add_argument("--data", type=Path, default=Path("prepared/diginetica"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--peer", type=Path, help="the folder pytorch_code of SR-GNN's repository")
    arguments = parser.parse_args()
    data = load(arguments.data)
    auto, model = posrec_step(data, "auto")
    least, products = least_step(model, data.train_items)
    steps: dict[str, Step] = {
        "step": auto, "step_fp32": posrec_step(data, "fp32")[0], "least": least, "least_fp32": least,
        "products": products,
    }  # fmt: skip
    if arguments.peer:
        steps["peer"] = peer_step(arguments.peer, data)

    def turn_of(name: str, step: Step) -> Step:
        def run(turn: int) -> None:
            for number in range(turn * arguments.steps, (turn + 1) * arguments.steps):
                step(number)

        def run_ours(turn: int) -> None:
            precision = "fp32" if name.endswith("fp32") else "auto"
            with matmul_precision(Settings(precision=precision), CPU, data.train_items), freed_memory_kept():
                run(turn)

        return run if name == "peer" else run_ours

    taken = in_turns({name: turn_of(name, step) for name, step in steps.items()}, arguments.rounds)
    rounds = [
        dict(zip(taken, [ms / arguments.steps for ms in values], strict=True))
        for values in zip(*taken.values(), strict=True)
    ]
    clicks = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    began = time.perf_counter()
    evaluate(model.eval(), data.test, data.train_items, model.config.max_length, clicks)
    ranking = time.perf_counter() - began
    report: dict[str, Any] = {
        "seed": 0,
        "dataset": data.fingerprint,
        "items": data.train_items,
        **{f"{name}_ms": round(statistics.median(one[name] for one in rounds), 1) for name in steps},
        **{f"{name}_best_ms": round(min(one[name] for one in rounds), 1) for name in steps},
        "bf16_new_shape_ms": round(new_shape_ms(), 1),
        "step_of_least": round(statistics.median(one["step"] / one["least"] for one in rounds), 2),
        "step_of_least_fp32": round(statistics.median(one["step_fp32"] / one["least_fp32"] for one in rounds), 2),
        "auto_of_fp32": round(statistics.median(one["step"] / one["step_fp32"] for one in rounds), 2),
        **({"step_of_peer": round(statistics.median(one["step"] / one["peer"] for one in rounds), 3)}
           if arguments.peer else {}),
        "test_samples": len(data.test),
        "evaluate_seconds": round(ranking, 1),
    }  # fmt: skip
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
