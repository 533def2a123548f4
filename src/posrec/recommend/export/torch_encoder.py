"""A model of torch on the CPU as a SessionEncoder, and its vectors as arrays."""

from typing import Any

import torch
from torch import Tensor

from posrec.errors import InputError
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.own_items import OwnItems
from posrec.recommend.rank.best_items import Columns, Floats
from posrec.recommend.rank.own_terms import OwnItemArrays
from posrec.runs.folder import AnyRun


class TorchEncoder:
    """`model` is a SessionModel, or has its `sessions_and_own_items`, `has_own_items` and `config`."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.has_own_items = model, model.config, model.has_own_items
        self.stride = model.stride

    @torch.inference_mode()
    def encode(self, items: Columns, lengths: Columns) -> tuple[Floats, OwnItemArrays | None]:
        vectors, own = self.model.sessions_and_own_items(
            SessionBatch(torch.from_numpy(items), torch.from_numpy(lengths))
        )
        return as_floats(vectors), None if own is None else as_arrays(own)


def as_arrays(own: OwnItems) -> OwnItemArrays:
    assert own.products is not None
    floats = (as_floats(one) for one in (own.products, own.raised, own.repeat, own.explore))
    return OwnItemArrays(own.items.cpu().numpy(), *floats)


def as_floats(tensor: Tensor) -> Floats:
    found: Floats = tensor.detach().float().cpu().contiguous().numpy()
    return found


def network(run: AnyRun) -> SessionModel:
    """The run's model on the CPU; an InputError for a counting model."""
    if not isinstance(run.model, SessionModel):
        raise InputError(f"{run.config['model']} has no item vectors, so there is nothing to index")
    return run.model.cpu().eval()


@torch.inference_mode()
def item_table(run: AnyRun) -> Floats:
    """[n, d] the item vectors of a run's model."""
    return as_floats(network(run).item_vectors())


@torch.inference_mode()
def similarity_vectors(run: AnyRun) -> Floats:
    """[n, d] the vectors by whose cosine two items are similar."""
    model: Any = run.model
    return as_floats(model.similarity_vectors())
