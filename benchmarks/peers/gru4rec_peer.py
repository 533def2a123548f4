"""GRU4Rec by its authors (GRU4Rec_PyTorch_Official): a table of clicks, and the network's states
step by step."""

import sys
from inspect import signature

import numpy as np
import pandas as pd
import torch
from exchange import read_job

job = read_job()
sys.path.insert(0, job.peer_folder)

from gru4rec_pytorch import GRU4Rec  # noqa: E402

torch.manual_seed(0)
epochs_by_default = job.settings.pop(
    "n_epochs", signature(GRU4Rec).parameters["n_epochs"].default
)
epochs = min(epochs_by_default, job.epochs)
gru = GRU4Rec(**job.settings, n_epochs=epochs, device=torch.device(job.device))
clicks = pd.DataFrame(
    {
        "SessionId": np.repeat(
            np.arange(len(job.train)), [len(session) for session in job.train]
        ),
        "ItemId": np.concatenate(job.train),
    }
)
clicks["Time"] = np.arange(len(clicks))
job.begin()  # measures
gru.fit(clicks)
job.is_best()  # measures
job.epochs_were(epochs)  # measures
model = gru.model.eval()
number_of_item = np.full(job.vocabulary + 1, -1)
number_of_item[gru.data_iterator.itemidmap.index] = gru.data_iterator.itemidmap


@torch.no_grad()
def scores(sessions):
    known = [
        numbers[numbers >= 0]
        for numbers in (number_of_item[session] for session in sessions)
    ]
    states = [
        torch.zeros(len(sessions), width, device=job.device) for width in gru.layers
    ]
    for place in range(max(len(numbers) for numbers in known)):
        rows = torch.tensor(
            [row for row, numbers in enumerate(known) if len(numbers) > place],
            device=job.device,
        )
        items = torch.tensor(
            [numbers[place] for numbers in known if len(numbers) > place],
            device=job.device,
        )
        step = [state[rows] for state in states]
        model.hidden_step(model.embed(items, step)[0], step)
        for state, new in zip(states, step, strict=True):
            state[rows] = new
    _, vectors, biases = model.embed(
        torch.zeros(1, dtype=torch.int64, device=job.device), states
    )
    of_all = np.full((len(sessions), job.items), -np.inf)
    of_all[:, gru.data_iterator.itemidmap.index - 1] = (
        model.score_items(states[-1], vectors, biases).cpu().numpy()
    )
    return of_all


def answer(session):
    """Its interface computes metrics of a whole test file, no recommendations."""
    raise NotImplementedError("GRU4Rec has fit and batch_eval alone")


job.finish(scores, answer, epochs_by_default)
