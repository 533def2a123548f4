"""Three ways to one softmax."""

import pytest
import torch

from posrec.training.losses import choose_loss, chunked_softmax, full_softmax, sampled_softmax


def vectors(sessions: int = 5, items: int = 17, d: int = 4) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return (
        torch.randn(sessions, d, dtype=torch.float64, requires_grad=True),
        torch.randn(items, d, dtype=torch.float64, requires_grad=True),
        torch.randint(1, items + 1, (sessions,)),
    )


def test_full_softmax_by_hand() -> None:
    sessions, items = torch.tensor([[1.0]]), torch.tensor([[0.0], [1.0], [2.0]])
    expected = torch.tensor([0.0, 1.0, 2.0]).logsumexp(0) - 1.0
    assert full_softmax(sessions, items, torch.tensor([2]))[0] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 100])
def test_chunks_change_neither_value_nor_gradient(chunk: int) -> None:
    sessions, items, targets = vectors()
    outcomes = []
    for loss in (full_softmax, lambda *three: chunked_softmax(*three, chunk=chunk)):
        value = loss(sessions, items, targets)
        outcomes.append([value, *torch.autograd.grad(value.sum(), [sessions, items])])
    for whole, chunked in zip(*outcomes, strict=True):
        assert torch.allclose(whole.double(), chunked.double(), atol=1e-5)


def test_sampled_loss_is_the_full_one_in_expectation() -> None:
    """With many draws the logQ-corrected loss approaches the full one; without the correction it would not."""
    torch.manual_seed(1)
    sessions, items, _ = vectors(sessions=1)
    clicks = torch.cat([torch.full((3 * number,), number) for number in range(1, 18)])  # very uneven popularity
    targets = torch.tensor([9])
    loss = sampled_softmax(clicks, negatives=4000)
    draws = torch.stack([loss(sessions, items, targets)[0].detach() for _ in range(60)])
    full = full_softmax(sessions, items, targets)[0].detach()
    assert abs(float(draws.mean() - full)) < 5 * float(draws.std()) / 60**0.5 + 0.01


def test_a_drawn_target_is_no_negative() -> None:
    sessions, items, _ = vectors(sessions=1, items=1)
    loss = sampled_softmax(torch.ones(10, dtype=torch.long), negatives=5)
    assert loss(sessions, items, torch.tensor([1]))[0] == 0


def test_the_loss_follows_the_catalogue_or_the_name() -> None:
    clicks = torch.tensor([1, 2])
    assert choose_loss("auto", 1000, clicks) is full_softmax
    assert choose_loss("auto", 1_000_000, clicks) is chunked_softmax
    assert choose_loss("chunked", 10, clicks) is chunked_softmax
    with pytest.raises(ValueError, match="loss='hinge' is not known"):
        choose_loss("hinge", 10, clicks)
