"""GRU4Rec by its authors (GRU4Rec_PyTorch_Official)."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.peers.libraries.exchange import Items, Scores, TimeIsUp, read_job

job = read_job()
sys.path.insert(0, job.peer_folder)

from gru4rec_pytorch import GRU4Rec, GRU4RecModel, SessionDataIterator  # noqa: E402

drawn_weights = GRU4RecModel._init_numpy_weights
batches_of_an_epoch = SessionDataIterator.__call__


def timed_batches(*arguments: Any, **named: Any) -> Iterator[Any]:
    if job.epoch_seconds and job.must_end():
        raise TimeIsUp
    job.epoch_begins()
    yield from batches_of_an_epoch(*arguments, **named)
    job.epoch_ends()


# They are float64 by the rules of numpy 2, which the code is older than.
GRU4RecModel._init_numpy_weights = lambda *shape: drawn_weights(*shape).astype("f4")
SessionDataIterator.__call__ = timed_batches
torch.manual_seed(0)
gru = GRU4Rec(**job.settings, device=torch.device(job.device))
lengths = [len(session) for session in job.train]
clicks = pd.DataFrame(
    {
        "SessionId": np.repeat(np.arange(len(lengths)), lengths),
        "ItemId": np.concatenate(job.train).astype(str),  # as its run.py reads them
        "Time": np.arange(sum(lengths)),
    }
)
with job.training():
    gru.fit(clicks)
model = gru.model.eval()
trained = gru.data_iterator.itemidmap.index.astype(int)
number_of_item = np.full(job.vocabulary + 1, -1)
number_of_item[trained] = gru.data_iterator.itemidmap


@torch.no_grad()
def scores(sessions: list[Items]) -> Scores:
    """The network's states click by click, and the scores of the last ones."""
    numbers = [number_of_item[session] for session in sessions]
    known = [clicks[clicks >= 0] for clicks in numbers]
    states = [
        torch.zeros(len(sessions), width, device=job.device) for width in gru.layers
    ]
    for position in range(max(len(clicks) for clicks in known)):
        rows = [row for row, clicks in enumerate(known) if len(clicks) > position]
        clicked = [known[row][position] for row in rows]
        step = [state[rows] for state in states]
        items = torch.tensor(clicked, device=job.device)
        model.hidden_step(model.embed(items, step)[0], step)
        for state, new in zip(states, step, strict=True):
            state[rows] = new
    no_item = torch.zeros(1, dtype=torch.int64, device=job.device)
    _, vectors, biases = model.embed(no_item, states)
    scored = model.score_items(states[-1], vectors, biases).cpu().numpy()
    result = np.full((len(sessions), job.items), -np.inf)
    result[:, trained - 1] = scored
    return result


def answer(session: Items) -> object:
    """Its interface computes metrics of a whole test file, no recommendations."""
    raise NotImplementedError("GRU4Rec has fit and batch_eval alone")


job.finish(scores, answer)
