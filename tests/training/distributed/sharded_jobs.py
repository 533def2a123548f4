"""What each of several processes does in the tests of training over processes; `pair.py` beside it starts them.

    python sharded_jobs.py FOLDER JOB...

Every job compares what the processes compute together with what one computes alone, or trains a run for the test to
compare. Its outcome is in FOLDER/JOB.RANK: "done", or the error.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posrec.data.dataset import SessionDataset, load
from posrec.errors import InputError
from posrec.evaluation.evaluate import evaluate
from posrec.fitting.fit import fit_run
from posrec.models.base import Encoded
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.nn.items.attribute_vectors import Attributes, AttributeVectors
from posrec.nn.items.coclicks import CoClickGraph
from posrec.nn.items.item_table import ItemTable, TableRows, rows_of
from posrec.nn.items.own_items import OwnItems
from posrec.nn.items.trends import Trends
from posrec.progress import SilentProgress
from posrec.training.batches import Batches, PassBatches, SampleBatches
from posrec.training.distributed.ranking import sharded_ranker
from posrec.training.distributed.rows import ShardedRows, keep_own_rows, sharded_rows_of
from posrec.training.distributed.steps import choose_loss_of
from posrec.training.distributed.world import World, joined
from posrec.training.losses import losses_of
from posrec.training.settings import Settings
from posrec.training.step import Stepper

ITEMS, D, BATCH = 45, 6, 12  # the table has 48 rows


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), (found - expected).abs().max()


def part_of(world: World, whole: Tensor) -> Tensor:
    """This process's part of the samples of a batch."""
    return whole.view(world.size, -1, *whole.shape[1:])[world.rank]


def initial_weights(world: World, folder: Path) -> None:
    """They are those of one process, whatever distribution they are drawn from, and so is what is drawn after them."""
    for initialization in ("uniform", "normal"):
        config = PosRecConfig(d=D, initialization=initialization)
        torch.manual_seed(3)
        alone = PosRec(20_000, config)
        after = torch.rand(3)
        torch.manual_seed(3)
        model = keep_own_rows(PosRec(20_000, config), world)
        assert torch.equal(torch.rand(3), after)
        rows = model.embedding.rows
        assert len(model.embedding.weight) == len(rows) < len(alone.embedding.weight)
        assert torch.equal(model.embedding.weight, alone.embedding.weight[rows.start : rows.end])
        shared = [name for name, _ in model.named_parameters() if name != "embedding.weight"]
        assert all(torch.equal(model.get_parameter(name), alone.get_parameter(name)) for name in shared)


def look_ups(world: World, folder: Path) -> None:
    """Vectors and the table's gradient, with different numbers of items in each process, unknown items and none."""
    torch.manual_seed(0)
    alone = ItemTable(ITEMS, D)
    torch.manual_seed(0)
    table = keep_own_rows(ItemTable(ITEMS, D), world)
    for count in (0, 5):
        torch.manual_seed(1)
        parts = [torch.randint(-2, ITEMS + 4, (2, (count + rank) * (rank + 1))) for rank in range(world.size)]
        factors = [torch.randn(*part.shape, D) for part in parts]
        vectors, same = table.look_up_and_table(parts[world.rank])
        close(vectors, alone.look_up(parts[world.rank]))
        expected = sum((alone.look_up(part) * factor).sum() for part, factor in zip(parts, factors, strict=True))
        (expected + 0.5 * alone.weight.square().sum()).backward()
        ((vectors * factors[world.rank]).sum() + 0.5 * same.square().sum()).backward()
        close(table.weight.grad, alone.weight.grad[table.rows.start : table.rows.end])
        table.zero_grad()
        alone.zero_grad()


def steps(world: World, folder: Path) -> None:
    """Batches that parts of equal size do not divide, of samples and of whole sessions."""
    data, losses = load(folder / "data"), []
    for is_sharded in (False, True):
        for kind, config in WITHOUT_DROPOUT:
            torch.manual_seed(4)
            model = kind(data.train_items, config)
            if is_sharded:
                keep_own_rows(model, world)
            model.count(data.train.items, data.train.offsets)
            loss = choose_loss_of(rows_of(model), Settings(loss="full"), data.train_items, data.train.items)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            weights = torch.rand(len(data.train), generator=torch.Generator().manual_seed(1))
            processes = world.size if is_sharded else 1
            if model.is_causal:
                batches: Batches = PassBatches(data.train, weights, 7, 6, model.stride, processes)
            else:
                batches = SampleBatches(data.train, weights, 7, 6, model.build_graph, processes)
            order = batches.arrange(torch.arange(20), torch.Generator().manual_seed(2))
            stepper = Stepper(model.train(), optimizer, batches, loss, 7, 6, torch.device("cpu"))
            losses.append(torch.cat([stepper.run(batch[None]) for batch in order]))
    kinds = len(WITHOUT_DROPOUT)
    for alone, together in zip(losses[:kinds], losses[kinds:], strict=True):
        close(world.summed(together), alone)


def own_items(batch: int) -> OwnItems:
    items = torch.stack([torch.randperm(ITEMS)[:4] + 1 for _ in range(batch)])
    items[:, 3] = torch.where(torch.rand(batch) < 0.5, 0, items[:, 3])
    numbers = [torch.randn(batch, 4) for _ in range(3)]
    return OwnItems(items, numbers[0], numbers[1].requires_grad_(), numbers[2], -torch.rand(batch) - 0.1)


def losses(world: World, folder: Path) -> None:
    """Values and gradients of every loss against those of one process."""
    for name in ("full", "chunked", "sampled", "bpr", "top1-max", "bpr-max"):
        for with_own in (False, True) if name in ("full", "chunked", "sampled") else (False,):
            for items in (ITEMS, 13):  # a softmax over the first items alone: the others were never clicked
                if items < ITEMS and name not in ("full", "chunked"):
                    continue
                compare_loss(world, name, with_own, items)


def compare_loss(world: World, name: str, with_own: bool, items: int) -> None:
    torch.manual_seed(5)
    whole, rows = TableRows(ITEMS), ShardedRows(ITEMS, world)
    table, sessions = torch.randn(len(whole), D), torch.randn(BATCH, D)
    targets, clicks, weights = torch.randint(1, items + 1, (BATCH,)), torch.arange(1, ITEMS + 1), torch.rand(BATCH)
    own = own_items(BATCH) if with_own and items == ITEMS else None
    settings, found = Settings(loss=name, negatives=20, sample_alpha=0.5, score_l2=0.3), []
    for held in (whole, rows):
        mine: Callable[[Tensor], Tensor] = (lambda one: one) if held is whole else (lambda one: part_of(world, one))
        own_table = (table if held is whole else table[rows.start : rows.end]).clone().requires_grad_()
        own_sessions = mine(sessions).clone().requires_grad_()
        raised = None if own is None else mine(own.raised.detach()).clone().requires_grad_()
        of_own = None
        if own is not None:
            of_own = replace(own, items=mine(own.items), products=mine(own.products), raised=raised,
                             repeat=mine(own.repeat), explore=mine(own.explore))  # fmt: skip
        torch.manual_seed(7)
        loss = choose_loss_of(held, settings, items, clicks)
        values = losses_of(loss, Encoded(own_sessions, own_table, of_own), mine(targets))
        (values * mine(weights)).sum().backward()
        found.append((values.detach(), own_sessions.grad, own_table.grad, None if raised is None else raised.grad))
    alone, together = found
    close(together[0], part_of(world, alone[0]))
    close(together[1], part_of(world, alone[1]))
    close(together[2], alone[2][rows.start : rows.end])
    if own is not None:
        close(together[3], part_of(world, alone[3]))


def small_chunks(world: World, folder: Path) -> None:
    """The softmax in chunks that end within a process's rows."""
    from posrec.training.distributed import steps as module

    whole_chunks = module.sharded_softmax
    module.sharded_softmax = partial(whole_chunks, chunk=7)
    for items in (ITEMS, 13):
        compare_loss(world, "chunked", True, items)
    module.sharded_softmax = whole_chunks


def smoothing(world: World, folder: Path) -> None:
    torch.manual_seed(2)
    clicks, offsets = torch.randint(1, ITEMS + 1, (200,), dtype=torch.int32), torch.arange(0, 201, 5)
    table, factor = torch.randn(48, D), torch.randn(48, D)
    rows, found = ShardedRows(ITEMS, world), []
    for held in (TableRows(ITEMS), rows):
        graph = CoClickGraph(0.5, neighbours=3, window=2)
        graph.count(clicks, offsets, held)
        own = table[held.start : held.end].clone().requires_grad_()
        smoothed = graph.smoothed(own)
        (smoothed * factor[held.start : held.end]).sum().backward()
        found.append((smoothed.detach(), own.grad, graph.unsmoothed(smoothed.detach())))
    for alone, together in zip(*found, strict=True):
        close(together, alone[rows.start : rows.end])
    trends = [Trends(held) for held in (TableRows(ITEMS), rows)]
    wanted, when = torch.randint(0, ITEMS, (9 + world.rank,)), torch.rand(3)
    for one in trends:
        one.count(clicks, offsets)
        nn.init.constant_(one.weights, 0.3)
    close(trends[1].by_part(), trends[0].by_part()[rows.start : rows.end])
    for moment in (when, None):
        close(trends[1].of_items(moment, wanted), trends[0].of_items(moment, wanted))


def attributes(world: World, folder: Path) -> None:
    """The vectors of this process's items, and the gradients of what all items share."""
    torch.manual_seed(6)
    rows = ShardedRows(ITEMS, world)
    given = Attributes(torch.arange(ITEMS), torch.randint(0, 5, (ITEMS,)), torch.rand(ITEMS), 5, torch.randn(ITEMS, 2))
    factor, parts = torch.randn(48, D), []
    for held in (TableRows(ITEMS), rows):
        torch.manual_seed(8)
        part = AttributeVectors(held, D)
        part.describe(given)
        (part() * factor[held.start : held.end]).sum().backward()
        parts.append(part)
    alone, own = parts
    close(own(), alone()[rows.start : rows.end])
    assert torch.equal(own.described, alone.described[rows.start : rows.end])
    for name in ("of_values", "map"):
        close(world.summed(own.get_parameter(name).grad), alone.get_parameter(name).grad)
    models = []
    for is_sharded in (False, True):
        torch.manual_seed(9)
        model = PosRecPlus(ITEMS, PosRecPlusConfig(d=D, attributes="auto"))
        if is_sharded:
            keep_own_rows(model, world)
        model.describe(given)
        models.append(model)
    close(models[1].smoothed(), models[0].smoothed()[rows.start : rows.end])


def ranking(world: World, folder: Path) -> None:
    """Ranks and best items are those of one process, with and without a term for the session's own items."""
    data = load(folder / "data")
    kinds: list[tuple[Any, Any]] = [(PosRec, PosRecConfig(d=D)), (PosRecPlus, PosRecPlusConfig(d=D, trend=False))]
    for kind, config in kinds:
        torch.manual_seed(4)
        alone = kind(data.train_items, config)
        torch.manual_seed(4)
        model = keep_own_rows(kind(data.train_items, config), world)
        samples = SessionDataset(data.test.items, data.test.offsets, data.test.times)
        clicks = torch.ones(data.train_items + 1)
        rows = sharded_rows_of(model)
        assert rows is not None
        expected, found = (
            evaluate(one.eval(), samples, data.train_items, config.max_length, clicks, rank=rank)
            for one, rank in ((alone, None), (model, sharded_ranker(model, rows)))
        )
        assert (found.ranks == expected.ranks).float().mean() > 0.99  # equal but for scores that round differently
        assert (found.top == expected.top).float().mean() > 0.99
        assert found.metrics.keys() == expected.metrics.keys()


def train_run(world: World, folder: Path, name: str) -> None:
    """Train or resume the run NAME-PROCESSES."""
    out = folder / f"{name}-{world.size}"
    resume, settings = name == "resumed", {**TRAINED[name]}
    model = settings.pop("model", name)
    fit_run(load(folder / "data"), model, out, settings, "cpu", resume, SilentProgress(), world=world)


def different_data(world: World, folder: Path) -> None:
    """All processes say what differs in one of them, and none waits or writes."""
    same = load(folder / "data")
    data = replace(same, manifest={**same.manifest, "fingerprint": f"of process {world.rank}"})
    for chosen, settings, differing in (
        (data, {}, "dataset is 'of process 0', and 'of process 1'"),
        (same, {"lambda2": 0.5 + world.rank}, "lambda2 is 0.5, and 1.5"),
    ):
        expected = f"process 0 and process 1 of the training have different data or options: {differing};"
        with pytest.raises(InputError, match=re.escape(expected)):
            fit_run(chosen, "posrec", folder / "different", settings, "cpu", progress=SilentProgress(), world=world)
        assert not (folder / "different").exists()


WITHOUT_DROPOUT: list[tuple[Any, Any]] = [
    (PosRec, PosRecConfig(d=D)),
    (PosRecPlus, PosRecPlusConfig(d=D, dropout=0, item_dropout=0, repeat_dropout=0, repeat_width=8)),
]
QUICK: dict[str, Any] = {"d": 8, "epochs": 2, "batch_size": 33, "learning_rate": 0.01, "max_length": 6}
TRAINED: dict[str, dict[str, Any]] = {  # without dropout, which differs from process to process
    "posrec": {**QUICK, "recency": 1.0},
    "posrec-plus": {**QUICK, "item_dropout": 0, "repeat_dropout": 0, "dropout": 0, "repeat_width": 8},
    "narm": {**QUICK, "hidden": 8, "dropout": 0, "embedding_dropout": 0, "protocol": "early-stop"},
    "sasrec": {**QUICK, "dropout": 0, "loss": "sampled"},
    "srgnn": QUICK,
    "bprmf": QUICK,
    "fpmc": {**QUICK, "loss": "bpr-max", "negatives": 16, "max_length": 1},
    "resumed": {**QUICK, "model": "sasrec", "dropout": 0},  # one process has begun it
}
JOBS: dict[str, Callable[[World, Path], None]] = {
    "initial_weights": initial_weights,
    "look_ups": look_ups,
    "steps": steps,
    "losses": losses,
    "small_chunks": small_chunks,
    "smoothing": smoothing,
    "attributes": attributes,
    "ranking": ranking,
    "different_data": different_data,
    **{name: partial(train_run, name=name) for name in TRAINED},
}


def main() -> None:
    folder, jobs = Path(sys.argv[1]), sys.argv[2:]
    with joined("cpu") as world:
        for job in jobs:
            outcome = folder / f"{job}.{world.rank}"
            try:
                JOBS[job](world, folder)
            except BaseException:
                outcome.write_text(traceback.format_exc())
                os._exit(1)  # the other processes must not wait for this one
            outcome.write_text("done")


if __name__ == "__main__":
    main()
