"""A training step on a CPU against the least it must do, and against a public implementation, side
by side.

    git clone https://github.com/CRIPAC-DIG/SR-GNN
    python benchmarks/step.py --data prepared/diginetica --peer SR-GNN/pytorch_code

Steps at batch 100, in turns: PosRec with `precision=auto` and with `fp32`; the least of both, which
is the softmax over all items forward and backward and Adam over the item table, nothing of the
model; and the peer's. The ratios depend less on the machine than the milliseconds do. Then the
whole test part is ranked once."""

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from harness import CPU, Training, in_turns, options, write_result
from posrec.data.dataset import PreparedDataset, load
from posrec.evaluation.evaluate import evaluate
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.epoch import matmul_precision
from posrec.training.settings import Settings
from posrec.training.softmax import softmax_loss

# steps of a turn
BATCH = 100
STEPS = 10
Step = Callable[[int], object]


def least_step(model: PosRec, items: int) -> Step:
    """The softmax and Adam of the item table."""
    table = torch.nn.Parameter(torch.randn_like(model.embedding.weight) * 0.1)
    adam = torch.optim.Adam([table], lr=0.001, weight_decay=1e-5, fused=True)
    sessions = torch.randn(BATCH, model.config.d)
    targets = torch.randint(1, items + 1, (BATCH,))
    sessions.requires_grad_()
    loss = softmax_loss(items)

    def step(_: int) -> None:
        adam.zero_grad()
        loss(sessions, table, targets).mean().backward()
        adam.step()

    return step


def peer_step(code: Path, data: PreparedDataset) -> Step:
    """SR-GNN's public code as its main.py calls it, on the samples of the first 2,000 sessions."""
    sys.path.insert(0, str(code))
    modules = {name: importlib.import_module(name) for name in ("utils", "model")}
    part = data.train.part(0, 2000)
    inputs = []
    targets = []
    for session in range(part.sessions):
        clicks = part.items[part.offsets[session] : part.offsets[session + 1]].tolist()
        for place in range(1, len(clicks)):
            inputs.append(clicks[:place])
            targets.append(clicks[place])
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
        wanted, scores = modules["model"].forward(
            model, slices[number % len(slices)], samples
        )
        model.loss_function(scores, torch.Tensor(wanted).long() - 1).backward()
        model.optimizer.step()

    return step


def main() -> None:
    given = options(
        __doc__,
        "results/step.json",
        data=Path("prepared/diginetica"),
        rounds=15,
        peer=Path("pytorch_code"),
    )
    data = load(given.data)
    length = PosRecConfig().max_length
    auto, fp32 = (
        Training(
            data.train,
            data.train_items,
            Settings(batch_size=BATCH, precision=precision),
            length,
        )
        for precision in ("auto", "fp32")
    )
    model = auto.model
    steps = {
        "step": auto.run,
        "step_fp32": fp32.run,
        "least": least_step(model, data.train_items),
        "peer": peer_step(given.peer, data),
    }

    def turn(name: str, number: int) -> None:
        precision = Settings(precision="fp32" if name.endswith("fp32") else "auto")
        ours = (
            matmul_precision(precision, CPU, data.train_items)
            if name != "peer"
            else nullcontext()
        )
        with ours:
            for place in range(number * STEPS, (number + 1) * STEPS):
                steps[name](place)

    taken = in_turns({name: partial(turn, name) for name in steps}, given.rounds)
    taken = {name: [ms / STEPS for ms in values] for name, values in taken.items()}

    def ratio(name: str, other: str) -> float:
        return round(
            statistics.median(
                one / two for one, two in zip(taken[name], taken[other], strict=True)
            ),
            3,
        )

    clicks = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    began = time.perf_counter()
    evaluate(model.eval(), data.test, data.train_items, model.config.max_length, clicks)
    ranking = time.perf_counter() - began
    report: dict[str, Any] = {
        "seed": 0,
        "dataset": data.fingerprint,
        "items": data.train_items,
        **{
            f"{name}_ms": round(statistics.median(values), 1)
            for name, values in taken.items()
        },
        **{f"{name}_best_ms": round(min(values), 1) for name, values in taken.items()},
        "step_of_least": ratio("step", "least"),
        "step_of_peer": ratio("step", "peer"),
        "test_samples": len(data.test),
        "evaluate_seconds": round(ranking, 1),
    }
    write_result(given.out, report)


if __name__ == "__main__":
    main()
