"""What a training starts from instead of random weights, and what it leaves for a later one.

Adam divides each gradient by the root of its second moment, the running mean of squared gradients.
If these start from 0, an item that is not a target in the first steps has only tiny gradients, all
away from the sessions, and each moves its vector by the whole learning rate. So a run keeps the
second moments, as their mean over each row of a weight: one number for each item."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from posrec.data.dataset import SessionDataset
from posrec.errors import InputError
from posrec.io import CONTINUATION, save_tensors
from posrec.models.base import SessionModel
from posrec.training.optimizers import Optimizer

# As if Adam had taken this many steps: then it corrects its second moments by less than 1 %.
STEPS_BEFORE = 5000


class Start(Protocol):
    """Sets what a training begins with."""

    def set_weights(self, model: SessionModel, samples: SessionDataset) -> None:
        """Set the weights of `model`, which has counted `samples`."""

    def set_moments(self, model: SessionModel, optimizer: Optimizer) -> None:
        """Set the optimizer's squares; the model is where it will be trained."""

    def new_samples(self, samples: SessionDataset) -> Tensor | None:
        """[samples] whether no earlier training has used it; None if that is not known."""


@dataclass(frozen=True)
class Continuation:
    """What a training that starts from a run needs besides its weights: the content of
    continuation.safetensors."""

    # Adam's second moments by the name of the weight: the mean over each row, [rows], of a matrix;
    # all of a vector or a number.
    moments: Mapping[str, Tensor]
    trained_until: int  # when the training session began that began last

    @classmethod
    def of_training(
        cls, model: SessionModel, optimizer: Optimizer, trained_until: int
    ) -> "Continuation":
        moments = {}
        for name, parameter in model.named_parameters():
            squares = optimizer.state.get(parameter, {}).get(optimizer.squares)
            if squares is not None:
                is_matrix = squares.dim() >= 2
                moments[name] = squares.flatten(1).mean(1) if is_matrix else squares
        return cls(moments, trained_until)

    @classmethod
    def of_file(
        cls, path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
    ) -> "Continuation":
        """From the content of the file `path`, which an error names."""
        trained_until = about.get("trained_until")
        if type(trained_until) is not int:
            raise InputError(
                f"{path} has no trained_until; it is damaged, copy the run again"
            )
        return cls(tensors, trained_until)

    def save(self, run: Path) -> None:
        about = {"trained_until": self.trained_until}
        save_tensors(run / CONTINUATION, self.moments, about)


def set_moments(
    model: SessionModel, optimizer: Optimizer, moments: Mapping[str, Tensor]
) -> None:
    """Begin Adam's state with these second moments; a weight without any begins with 0."""
    for name, parameter in model.named_parameters():
        if name not in moments:
            continue
        rows = moments[name].to(parameter)
        inner = [1] * (parameter.dim() - rows.dim())
        state = optimizer.first_state(parameter, STEPS_BEFORE)
        state[optimizer.squares].copy_(rows.view([*rows.shape, *inner]))
        optimizer.state[parameter] = state
