"""A training step on a CPU against the least it must do and against a public implementation.

    python -m benchmarks.speed.step --data prepared/diginetica --peer SR-GNN/pytorch_code

The peer is a clone of https://github.com/CRIPAC-DIG/SR-GNN. The steps take turns: PosRec with
`precision=auto` and with `fp32`, the least, and the peer's. The ratios depend less on the machine
than the milliseconds do. Then the whole test part is ranked once.
"""

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.harness.measuring import in_turns
from benchmarks.harness.results import options, write_result
from benchmarks.harness.training import CPU, Training
from posrec.data.dataset import PreparedDataset, load
from posrec.evaluation.evaluate import evaluate
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.epoch import matmul_precision
from posrec.training.settings import Settings
from posrec.training.softmax import softmax_loss

BATCH = 100  # sessions of a step
STEPS = 10  # of a turn
Step = Callable[[int], object]


def least_step(model: PosRec, items: int) -> Step:
    """The softmax over all items, forward and backward, and Adam over the item table."""
    table = torch.nn.Parameter(torch.randn_like(model.embedding.weight) * 0.1)
    adam = torch.optim.Adam([table], lr=0.001, weight_decay=1e-5, fused=True)
    sessions = torch.randn(BATCH, model.config.d)
    targets = torch.randint(1, items + 1, (BATCH,))
    sessions.requires_grad_()
    loss_function = softmax_loss(items)

    def step(_: int) -> None:
        adam.zero_grad()
        loss: Any = loss_function(sessions, table, targets).mean()
        loss.backward()
        adam.step()

    return step


def peer_step(code: Path, data: PreparedDataset) -> Step:
    """SR-GNN's public code as its main.py calls it, on the samples of the first 2,000 sessions."""
    sys.path.insert(0, str(code))
    modules = {name: importlib.import_module(name) for name in ("utils", "model")}
    sessions = data.train.part(0, 2000)
    inputs = []
    targets = []
    for number in range(sessions.sessions):
        clicks = sessions.session(number).tolist()
        for position in range(1, len(clicks)):
            inputs.append(clicks[:position])
            targets.append(clicks[position])
    options = SimpleNamespace(
        hiddenSize=100,
        batchSize=BATCH,
        nonhybrid=False,
        step=1,
        lr=0.001,
        l2=1e-5,
        lr_dc_step=3,
        lr_dc=0.1,
    )
    model = modules["model"].SessionGraph(options, data.train_items + 1)
    np.random.seed(0)
    samples = modules["utils"].Data((inputs, targets), shuffle=True)
    slices = samples.generate_batch(BATCH)[:-1]

    def step(number: int) -> None:
        model.optimizer.zero_grad()
        batch = slices[number % len(slices)]
        next_items, scores = modules["model"].forward(model, batch, samples)
        next_numbers = torch.Tensor(next_items).long() - 1
        model.loss_function(scores, next_numbers).backward()
        model.optimizer.step()

    return step


def step_times(
    steps: dict[str, Step], items: int, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds a step, of each kind in each round."""

    def turn(name: str, number: int) -> None:
        precision = "fp32" if name == "step_fp32" else "auto"
        with ExitStack() as stack:
            if name != "peer":
                settings = Settings(precision=precision)
                stack.enter_context(matmul_precision(settings, CPU, items))
            for step in range(number * STEPS, (number + 1) * STEPS):
                steps[name](step)

    times = in_turns({name: partial(turn, name) for name in steps}, rounds)
    return {name: [ms / STEPS for ms in values] for name, values in times.items()}


def median_ratio(times: list[float], others: list[float]) -> float:
    ratios = (ms / other for ms, other in zip(times, others, strict=True))
    return round(statistics.median(ratios), 3)


def main() -> None:
    arguments = options(
        __doc__,
        "results/step.json",
        data=Path("prepared/diginetica"),
        rounds=15,
        peer=Path("pytorch_code"),
    )
    data = load(arguments.data)
    items = data.train_items
    length = PosRecConfig().max_length
    auto, fp32 = (
        Training(
            data.train, items, Settings(batch_size=BATCH, precision=precision), length
        )
        for precision in ("auto", "fp32")
    )
    model = auto.model
    steps = {
        "step": auto.run,
        "step_fp32": fp32.run,
        "least": least_step(model, items),
        "peer": peer_step(arguments.peer, data),
    }
    times = step_times(steps, items, arguments.rounds)
    clicks = torch.bincount(data.train.items.long(), minlength=items + 1)
    began = time.perf_counter()
    evaluate(model.eval(), data.test, items, length, clicks)
    ranking = time.perf_counter() - began
    report: dict[str, Any] = {
        "seed": 0,
        "dataset": data.fingerprint,
        "items": items,
        **{
            f"{name}_ms": round(statistics.median(values), 1)
            for name, values in times.items()
        },
        **{f"{name}_best_ms": round(min(values), 1) for name, values in times.items()},
        "step_of_least": median_ratio(times["step"], times["least"]),
        "step_of_peer": median_ratio(times["step"], times["peer"]),
        "test_samples": len(data.test),
        "evaluate_seconds": round(ranking, 1),
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
