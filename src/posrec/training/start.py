"""What a training starts from instead of random weights, and what it leaves for a later one that starts from it.

Adam divides each gradient by the root of its second moment, the running mean of squared gradients. Where these start
from 0, an item that is not a target in the first steps has only tiny gradients, all away from the sessions, and each of
them moves its vector by the whole learning rate. So a run keeps the second moments, as their mean over each row of a
weight: one number for each item.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset
from posrec.io import Continuation
from posrec.models.base import SessionModel
from posrec.training.adam import first_state

STEPS_BEFORE = 5000  # Adam takes its second moments for those of so many steps, which corrects them by less than 1 %


class Start(ABC):
    """Sets what a training begins with."""

    @abstractmethod
    def set_weights(self, model: SessionModel, samples: SessionDataset) -> None:
        """Set the weights of `model`, which has counted `samples`."""

    @abstractmethod
    def set_moments(self, model: SessionModel, optimizer: torch.optim.Optimizer) -> None:
        """Set Adam's second moments; the model is where it will be trained."""

    @abstractmethod
    def new_samples(self, samples: SessionDataset) -> Tensor | None:
        """[samples] whether no earlier training has used a sample; None if that is not known."""


def continuation_of(model: SessionModel, optimizer: torch.optim.Optimizer, trained_until: int) -> Continuation:
    moments = {}
    for name, parameter in model.named_parameters():
        if (squares := optimizer.state.get(parameter, {}).get("exp_avg_sq")) is not None:
            moments[name] = squares if squares.dim() < 2 else squares.flatten(1).mean(1)
    return Continuation(moments, trained_until)


def set_moments(model: SessionModel, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Begin Adam's state with these second moments; a weight that has none in `moments` begins with 0."""
    for name, parameter in model.named_parameters():
        if name not in moments:
            continue
        rows = moments[name].to(parameter)
        rows = rows.view([*rows.shape, *[1] * (parameter.dim() - rows.dim())])
        state = optimizer.state[parameter] = first_state(parameter)
        state["step"].fill_(STEPS_BEFORE)
        state["exp_avg_sq"].copy_(rows)
