"""The optimiser: torch's Adam, its learning rate and its state."""

import inspect

import torch
from torch import Tensor, nn

from posrec.training.settings import Settings


class Adam(torch.optim.Adam):
    """torch.optim.Adam without the import of torch's compiler, which takes two seconds: torch
    imports it to exclude these methods, which nothing that posrec compiles calls."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


def make_optimizer(
    model: nn.Module, settings: Settings, device: torch.device
) -> torch.optim.Optimizer:
    """Dense, fused Adam: the softmax gives every item a gradient."""
    captured = device.type == "cuda"
    rate: float | Tensor = settings.learning_rate
    if captured:
        # A captured step reads the present value of a tensor.
        rate = torch.tensor(rate, device=device)
    return Adam(
        model.parameters(),
        lr=rate,
        weight_decay=settings.l2,
        fused=True,
        capturable=captured,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def first_state(parameter: Tensor) -> dict[str, Tensor]:
    """Adam's state of a weight before its first step. Fused Adam counts steps on the device of the
    weights."""
    return {
        "step": torch.zeros((), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
