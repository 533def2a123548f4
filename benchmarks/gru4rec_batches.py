"""GRU4Rec trained on prefixes, as posrec does, against the session-parallel batches of its first paper.

    python benchmarks/gru4rec_batches.py --data posrec-demo/data --out results/gru4rec_batches.json

Session-parallel (Hidasi et al., 2016, section 3.1.1): every row of the batch walks along a session, one click a step;
the state is carried to the next step, the gradient is not; a row whose session has ended goes on with the next one.
Prefixes are trained twice, with that cut gradient (`truncated`) and with the whole one. All see every target once an
epoch, with the same loss, optimiser and rate.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from conditions import conditions
from posrec.data.dataset import PreparedDataset, SessionDataset, load
from posrec.evaluation.evaluate import evaluate
from posrec.models.gru4rec import GRU4Rec, GRU4RecConfig
from posrec.training.adam import make_optimizer
from posrec.training.epoch import EpochRunner
from posrec.training.losses import choose_loss
from posrec.training.settings import Settings
from report import write_report

CPU = torch.device("cpu")


def prefix_epoch(model: GRU4Rec, adam: torch.optim.Optimizer, data: PreparedDataset, settings: Settings) -> None:
    steps = EpochRunner(model, adam, data.train, settings, CPU, data.train_items, model.config.max_length)
    order = steps.shuffle(0)
    for step in range(order.steps):
        steps.run(order, step)


def parallel_epoch(model: GRU4Rec, adam: torch.optim.Optimizer, data: PreparedDataset, settings: Settings) -> None:
    loss = choose_loss(settings.loss, data.train_items, data.train.items)
    layer = model.recurrent.layers[0]
    state = torch.zeros(1, settings.batch_size, model.config.hidden)
    for clicked, targets, starts in walks(data.train, settings.batch_size, settings.seed):
        state = torch.where(starts[None, :, None], 0, state.detach())
        x, table = model.embedding.look_up_and_table(clicked)
        output, state = layer(model.embedding_dropout(x)[:, None], state)
        adam.zero_grad()
        loss(model.dropout(output[:, 0]), table, targets).mean().backward()
        adam.step()


def walks(sessions: SessionDataset, rows: int, seed: int):
    """(item, next item, True where a session begins), [rows] each, until no session is left to fill a row."""
    order = torch.randperm(sessions.sessions, generator=torch.Generator().manual_seed(seed)).tolist()
    waiting = iter(order[rows:])
    at: Tensor = sessions.offsets[torch.tensor(order[:rows])].clone()
    end: Tensor = sessions.offsets[torch.tensor(order[:rows]) + 1].clone()
    starts = torch.ones(rows, dtype=torch.bool)
    while True:
        yield sessions.items[at].long(), sessions.items[at + 1].long(), starts
        at = at + 1
        starts = at + 1 == end
        for row in starts.nonzero()[:, 0].tolist():
            session = next(waiting, None)
            if session is None:
                return
            at[row], end[row] = sessions.offsets[session], sessions.offsets[session + 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("posrec-demo/data"))
    parser.add_argument("--out", type=Path, default=Path("results/gru4rec_batches.json"))
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    data = load(arguments.data)
    report = {"command": "python benchmarks/gru4rec_batches.py", "dataset": data.fingerprint}
    popularity = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    ways = (
        ("session_parallel", parallel_epoch, True),
        ("prefix_truncated", prefix_epoch, True),
        ("prefix", prefix_epoch, False),
    )
    for name, epoch, truncated in ways:
        torch.manual_seed(0)
        model = GRU4Rec(data.train_items, GRU4RecConfig(d=64, hidden=64, truncated=truncated))
        settings = Settings(loss="full", learning_rate=0.002)
        adam = make_optimizer(model, settings, CPU)
        rows = []
        for number in range(arguments.epochs):
            began = time.perf_counter()
            epoch(model.train(), adam, data, Settings(**{**vars(settings), "seed": number}))
            seconds = time.perf_counter() - began
            metrics = evaluate(model.eval(), data.test, data.train_items, model.config.max_length, popularity).metrics
            rows.append({
                "seconds": round(seconds, 1),
                **{key: round(100 * metrics[key], 2) for key in ("recall@10", "mrr@10")},
            })  # fmt: skip
            print(name, rows[-1], flush=True)
        report[name] = rows
    report |= conditions()
    write_report(arguments.out, report)


if __name__ == "__main__":
    main()
