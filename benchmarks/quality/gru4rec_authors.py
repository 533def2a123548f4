"""GRU4Rec by its authors on prepared sessions, as it is or with one thing changed."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, collate
from posrec.evaluation.metrics import ranks_of

Settings = dict[str, Any]
# In place of the start times of the sessions: their order is drawn.
SHUFFLED = "sessions in random order"


def step_without_dropout(
    network: Any, inputs: Tensor, states: list[Tensor], training: bool = False
) -> Tensor:
    """Dropout of what the scores are computed from, but not of what the next click reads."""
    for number, (layer, dropout) in enumerate(zip(network.G, network.D, strict=True)):
        states[number] = layer(inputs, states[number])
        inputs = dropout(states[number]) if training else states[number]
    return inputs


def scores_without_bias(_: Any, states: Tensor, items: Tensor, __: Tensor) -> Tensor:
    return states @ items.T


def weights_as_in_posrec(_: Any, shape: tuple[int, int]) -> np.ndarray:
    bound = 1 / math.sqrt(shape[1])
    return np.random.uniform(-bound, bound, shape).astype(np.float32)


# Methods of their network, by the name of the change.
CHANGES: dict[str, dict[str, Callable[..., Any]]] = {
    "states without dropout": {"hidden_step": step_without_dropout},
    "no bias": {"score_items": scores_without_bias},
    "posrec's initial weights": {"_init_numpy_weights": weights_as_in_posrec},
}


def train_theirs(
    code: Path, job: dict[str, Any], data: PreparedDataset, device: str
) -> Tensor:
    """The ranks of the authors' code, whose network reads the sessions click by click."""
    import pandas

    sys.path.insert(0, str(code))
    from gru4rec_pytorch import GRU4Rec, GRU4RecModel

    torch.manual_seed(job["seed"])
    settings = job["settings"] | {"n_epochs": job["epochs"]}
    change = settings.pop("change", None)
    peer = GRU4Rec(**settings, device=torch.device(device))
    lengths = data.train.offsets.diff().numpy()
    # It reads the sessions in the order in which they began.
    began = np.arange(len(lengths))
    if change == SHUFFLED:
        began = np.random.default_rng(job["seed"]).permutation(began)
    # Its logQ correction needs items that are numbered in the order in which it meets them.
    numbers, items = pandas.factorize(data.train.items.numpy())
    clicks = {
        "SessionId": np.repeat(np.arange(len(lengths)), lengths),
        "ItemId": numbers,
        "Time": np.repeat(began * len(numbers), lengths) + np.arange(len(numbers)),
    }
    drawn = GRU4RecModel._init_numpy_weights
    # Since numpy 2, what it draws is in double precision.
    methods: dict[str, Any] = {
        "_init_numpy_weights": lambda *arguments: drawn(*arguments).astype(np.float32),
        **CHANGES.get(change, {}),
    }
    with patch.multiple(GRU4RecModel, **methods):
        # By default it draws ten million negatives ahead, which takes a CPU minutes.
        peer.fit(pandas.DataFrame(clicks), sample_cache_max_size=1_000_000)
        return ranks_of_theirs(peer.model.eval(), torch.from_numpy(items).long(), data)


@torch.no_grad()
def ranks_of_theirs(network: Any, items: Tensor, data: PreparedDataset) -> Tensor:
    """`items`: its items in our numbers."""
    vectors = network.Wy.weight
    device = vectors.device
    items = items.to(device)
    number = torch.full((data.train_items + 1,), -1, device=device)
    number[items] = torch.arange(len(items), device=device)
    ranks = []
    for ids in torch.split(torch.arange(len(data.test)), 512):
        batch = collate(data.test, ids, data.test.longest).to(device)
        known = batch.items.clamp(max=data.train_items)
        clicked = torch.where(batch.items == known, number[known], -1)
        state = torch.zeros(len(ids), vectors.shape[1], device=device)
        for clicks in clicked.T:
            new = network.G[0](vectors[clicks.clamp(min=0)], state)
            state = torch.where(clicks[:, None] >= 0, new, state)
        scores = torch.full(
            (len(ids), data.train_items), -torch.inf, device=device
        ).index_copy_(
            1, items - 1, network.score_items(state, vectors, network.By.weight)
        )
        assert batch.targets is not None
        ranks.append(ranks_of(scores, batch.targets).cpu())
    return torch.cat(ranks)
