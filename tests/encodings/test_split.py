"""An encoding as the sum of a forward and a backward part: every scheme, and those that can't be
split."""

import pytest
import torch
from torch import Tensor

from posrec.encodings.schemes import ENCODINGS, AnyScheme, make_encoding
from posrec.encodings.split import require_split, split

LENGTH = 12
D = 10
BY_LENGTH = ("2dspe", "2dlpe")
SPLIT = [name for name in ENCODINGS if name not in BY_LENGTH]


@pytest.mark.parametrize("name", SPLIT)
def test_the_parts_add_up_to_the_encoding_at_every_position_of_every_length(
    name: str,
) -> None:
    encoding = make_encoding(name, D, LENGTH)
    require_split(encoding, name, LENGTH)
    forward, backward, _ = split(encoding, LENGTH)
    assert not backward[0].any()
    for length in range(1, LENGTH + 1):
        position = torch.arange(length)[None]
        from_last = length - 1 - position
        expected = encoding(position, from_last, torch.tensor([length]))
        added = forward[position] + backward[from_last]
        assert torch.allclose(added, expected, atol=1e-6)


def test_the_bias_by_distance_is_that_of_the_pairs() -> None:
    encoding = make_encoding("rpe", D, LENGTH, heads=2)
    torch.nn.init.normal_(encoding.get_parameter("table"))
    position = torch.arange(LENGTH)[None]
    session = (position, LENGTH - 1 - position, torch.tensor([LENGTH]))
    (of_pairs,) = encoding.attention_bias(*session)
    _, _, by_distance = split(encoding, LENGTH)
    for i in range(LENGTH):
        for j in range(i + 1):
            assert torch.equal(by_distance[:, i - j], of_pairs[:, i, j])


def product(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    return (forward * backward)[..., None].float().expand(-1, -1, D)


class BiasOfTheFirst(torch.nn.Module):
    """A bias that depends on the position, not on the distance."""

    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return torch.zeros(*forward.shape, D)

    def attention_bias(
        self, forward: Tensor, backward: Tensor, length: Tensor
    ) -> Tensor:
        return (forward == 0).float()[:, None, None].expand(-1, 1, forward.shape[1], -1)


@pytest.mark.parametrize(
    "scheme",
    [*BY_LENGTH, product, BiasOfTheFirst()],
    ids=["2dspe", "2dlpe", "product", "bias"],
)
def test_what_can_not_be_split_is_refused(scheme: AnyScheme) -> None:
    encoding = make_encoding(scheme, D, LENGTH)
    with pytest.raises(ValueError, match="encoding=mine depends on"):
        require_split(encoding, "mine", LENGTH)
