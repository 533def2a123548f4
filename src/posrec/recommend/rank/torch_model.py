"""Computing by torch: session vectors of any model, and a search on a GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posrec.errors import InputError
from posrec.models.base import Model, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.own_items import OwnItems
from posrec.recommend.rank.best_items import (
    Best,
    Columns,
    Floats,
    Found,
    Masks,
    OwnItemArrays,
    Search,
    best_allowed,
)
from posrec.recommend.rank.encoder import Encoded
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.runs.folder import Run


def as_floats(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().float().cpu().contiguous().numpy()
    return array


def as_arrays(own_items: OwnItems) -> OwnItemArrays:
    return OwnItemArrays(
        own_items.items.cpu().numpy(),
        as_floats(own_items.raised),
        as_floats(own_items.repeat),
        as_floats(own_items.explore),
    )


@torch.inference_mode()
def item_table(run: Run) -> Floats:
    """[n, d] the item vectors of a run's model, which moves to the CPU."""
    if not isinstance(run.model, SessionModel):
        raise InputError(f"{run.config['model']} has no item vectors to export")
    return as_floats(run.model.cpu().eval().item_vectors())


@torch.inference_mode()
def similarity_vectors(run: Run) -> Floats:
    """[n, d] the vectors by whose cosine two items are similar."""
    model: Any = run.model
    return as_floats(model.similarity_vectors())


class TorchEncoder:
    """Session vectors of a model; the vector of a counting model is its scores of all items."""

    def __init__(self, model: Model, device: torch.device | str = "cpu") -> None:
        self.model = model.to(device).eval()
        self.device = device
        self.max_length: int = model.config.max_length
        self.stride = model.stride
        self.has_own_items = model.has_own_items

    @torch.inference_mode()
    def encode(self, items: Columns, lengths: Columns) -> Encoded:
        batch = SessionBatch(torch.from_numpy(items), torch.from_numpy(lengths))
        batch = batch.to(self.device)
        if not isinstance(self.model, SessionModel):
            return as_floats(self.model.scores(batch)), None
        vectors, own_items = self.model.sessions_and_own_items(batch)
        arrays = None if own_items is None else as_arrays(own_items)
        return as_floats(vectors), arrays


class AllScores(Search):
    """For session vectors that are scores of all items."""

    kind = "all scores"

    def search(self, sessions: Floats, counts: Sequence[int], masks: Masks) -> Found:
        rows = zip(sessions, counts, masks, strict=True)
        return Found([best_allowed(*row) for row in rows])

    def products(self, sessions: Floats, columns: Columns) -> Floats:
        return np.take_along_axis(sessions, columns, 1)


class GpuSearch(Search):
    """The products with all items on a GPU, where their vectors stay."""

    kind = "exact"
    at_once = 1024

    def __init__(self, table: Tensor) -> None:
        self.table = table  # [n, d]

    @torch.inference_mode()
    def search(self, sessions: Floats, counts: Sequence[int], masks: Masks) -> Found:
        device = self.table.device
        products = torch.from_numpy(sessions).to(device) @ self.table.T  # [B, n]
        log_sums = as_floats(products.logsumexp(1))
        if any(mask is not None for mask in masks):
            every = np.ones(len(self.table), np.bool_)
            of_rows = [every if mask is None else mask for mask in masks]
            is_allowed = torch.from_numpy(np.stack(of_rows)).to(device)
            products = products.masked_fill(~is_allowed, -torch.inf)
        best = products.topk(max(counts))
        columns = best.indices.cpu().numpy()
        found = []
        for row, scores in enumerate(as_floats(best.values)):
            number = np.count_nonzero(scores[: counts[row]] != -np.inf)
            found.append(Best(scores[:number], columns[row, :number]))
        return Found(found, log_sums)

    @torch.inference_mode()
    def products(self, sessions: Floats, columns: Columns) -> Floats:
        vectors = self.table[torch.from_numpy(columns).to(self.table.device)]
        of_sessions = torch.from_numpy(sessions).to(self.table.device)
        return as_floats(torch.einsum("brd,bd->br", vectors, of_sessions))


@torch.inference_mode()
def search_of(model: Model, device: torch.device, cores: int = 1) -> Search:
    """The search for a model of torch; its item vectors are computed here, once."""
    if not isinstance(model, SessionModel):
        return AllScores()
    table = model.to(device).eval().item_vectors()
    if device.type == "cpu":
        return ExactSearch(as_floats(table), model.has_own_items, cores=cores)
    return GpuSearch(table.float())
