"""Shared by the tests of factor and sequence models: checks of the contract, and a GRU in plain loops."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posrec.nn.batch import SessionBatch
from posrec.training.softmax import softmax_loss

ITEMS = 12
SESSIONS = [[1, 2, 3], [4], [5, 5, 5], [1, 2, 1, 3, 2, 9, 1], [7, 8, 7, 8], [12, 50, 3], [50]]  # 50 is not known


def batch() -> SessionBatch:
    return SessionBatch.of(SESSIONS)


def agrees_with(model: nn.Module, slowly: Callable[[list[int]], Tensor]) -> None:
    """The batch's session vectors against one session at a time, and scores as their product with the items."""
    expected = torch.stack([slowly(session) for session in SESSIONS])
    assert torch.allclose(model.session_vectors(batch()), expected, atol=1e-12)
    assert torch.allclose(model.scores(batch()), expected @ model.item_vectors().T, atol=1e-12)
    assert model.scores(batch()).shape == (len(SESSIONS), ITEMS)


def gives_every_weight_a_gradient(model: nn.Module) -> None:
    """Through `vectors` and the loss, as in training; the same as through the two separate calls."""
    targets = torch.arange(1, len(SESSIONS) + 1)
    gradients = []
    for together in (True, False):
        model.zero_grad()
        vectors = model.vectors(batch()) if together else (model.session_vectors(batch()), model.item_vectors())
        softmax_loss(ITEMS)(*vectors, targets).sum().backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient.abs().sum() > 0, name
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name


def gru_slowly(layer: nn.GRU, inputs: list[Tensor]) -> list[Tensor]:
    """The states of one layer, click by click, gate by gate."""
    state, states = torch.zeros(layer.hidden_size, dtype=torch.float64), []
    for x in inputs:
        from_x = layer.weight_ih_l0 @ x + layer.bias_ih_l0
        from_state = layer.weight_hh_l0 @ state + layer.bias_hh_l0
        (reset_x, update_x, new_x), (reset_h, update_h, new_h) = from_x.chunk(3), from_state.chunk(3)
        reset, update = (reset_x + reset_h).sigmoid(), (update_x + update_h).sigmoid()
        state = (1 - update) * (new_x + reset * new_h).tanh() + update * state
        states.append(state)
    return states


def vector(table: nn.Module, item: int) -> Tensor:
    known = 1 <= item <= ITEMS
    return table.weight[item - 1] if known else torch.zeros(table.weight.shape[1], dtype=torch.float64)
