"""A user's own encoding may be a function, a module or a class; a wrong shape is reported at once."""

import pytest
import torch
from tests.encodings.plain_sessions import session

from posrec.encodings.schemes import make_encoding


def counting(forward: torch.Tensor, backward: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return torch.stack([forward, backward], dim=-1).float()


class Scaled(torch.nn.Module):
    def __init__(self, d: int, max_length: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((d,), 1 / max_length))

    def forward(self, forward: torch.Tensor, backward: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        return forward.unsqueeze(-1) * self.weight


def test_a_users_own_function_module_or_class_is_accepted() -> None:
    assert make_encoding(counting, d=2, max_length=9)(*session(2))[0].tolist() == [[0, 1], [1, 0]]
    assert make_encoding(Scaled, d=3, max_length=4)(*session(2))[0, 1].tolist() == [0.25] * 3
    own = Scaled(3, 4).to("meta")  # like a module that is already on an accelerator
    assert make_encoding(own, d=3, max_length=9) is own


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        (lambda forward, backward, length: forward, r"torch\.int64 \(1, 2\)"),
        (lambda forward, backward, length: torch.stack([forward] * 3, -1), r"torch\.int64 \(1, 2, 3\)"),
        (lambda forward, backward, length: torch.zeros(1, 2, 4), r"torch\.float32 \(1, 2, 4\)"),
        (lambda forward, backward, length: [[0.0]], "list"),
    ],
)
def test_a_wrong_shape_from_a_users_scheme_is_reported_at_once(own: object, seen: str) -> None:
    with pytest.raises(ValueError, match=rf"gave {seen} .* it must give floats of \(1, 2, 3\)"):
        make_encoding(own, d=3, max_length=9)
