"""Packing: rows and slots hold the same values, and gradients reach the filled slots only."""

import torch
from hypothesis import given, strategies as st

from posrec.nn.packing import pack

masks = st.lists(
    st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5
).filter(lambda rows: any(map(any, rows)))


@given(masks, st.none() | st.integers(0, 7))
def test_rows_and_slots_convert_into_each_other(
    mask: list[list[bool]], spare: int | None
) -> None:
    filled = torch.tensor(mask)
    count = int(filled.sum())
    packing = pack(filled, None if spare is None else count + spare)
    slots = torch.randn(*filled.shape, 3, dtype=torch.float64, requires_grad=True)
    rows = packing.to_rows(slots)
    assert len(rows) == count + (spare or 0)
    assert torch.equal(rows[:count], slots[filled])
    assert torch.equal(packing.to_slots(rows)[filled], slots[filled])
    # Only filled slots have a gradient.
    weights = torch.randn(*filled.shape, 3, dtype=torch.float64)
    masked = packing.to_slots(rows * 2).where(filled[..., None], 0)
    (masked * weights).sum().backward()
    assert slots.grad is not None
    assert torch.equal(slots.grad, torch.where(filled[..., None], 2 * weights, 0))


def test_rows_past_the_last_give_no_gradient() -> None:
    packing = pack(torch.tensor([[True, False]]), capacity=3)
    rows = torch.ones(3, 2, requires_grad=True)
    packing.to_slots(rows).sum().backward()
    assert rows.grad is not None
    assert rows.grad[1:].sum() == 0
