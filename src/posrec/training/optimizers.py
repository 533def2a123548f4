"""The optimisers: torch's Adam and Adagrad, their learning rate and state."""

import inspect

import torch
from torch import Tensor, nn

from posrec.training.settings import Settings

# Of Adagrad: the first steps of a weight are short, as in the code of GRU4Rec's authors, which has
# 1e-6 below the root.
EPSILON = 1e-3


class WithoutCompiler:
    """Methods of torch's optimisers without the import of torch's compiler, which takes two
    seconds: torch imports it to exclude them, and nothing that posrec compiles calls them."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class Adam(WithoutCompiler, torch.optim.Adam):
    squares = "exp_avg_sq"  # of its state: what it divides gradients by the root of
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))

    def first_state(self, parameter: Tensor, steps: int = 0) -> dict[str, Tensor]:
        """The state of a weight before its first step, as if there had been `steps`. Fused Adam
        counts steps on the device of the weights."""
        return {
            "step": torch.tensor(float(steps), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


class Adagrad(WithoutCompiler, torch.optim.Adagrad):
    squares = "sum"
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adagrad.step))

    def first_state(self, parameter: Tensor, steps: int = 0) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        return state


Optimizer = Adam | Adagrad


def make_optimizer(
    model: nn.Module, settings: Settings, device: torch.device
) -> Optimizer:
    """Dense steps: the softmax gives every item a gradient."""
    captured = device.type == "cuda"
    rate: float | Tensor = settings.learning_rate
    if captured:
        # A captured step reads the present value of a tensor.
        rate = torch.tensor(rate, device=device)
    if settings.optimizer == "adagrad":
        return Adagrad(
            model.parameters(),
            lr=rate,
            weight_decay=settings.l2,
            eps=EPSILON,
            fused=not captured,
            foreach=captured,  # the one that reads a tensor
        )
    return Adam(
        model.parameters(),
        lr=rate,
        betas=(0.9, settings.beta2),
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
