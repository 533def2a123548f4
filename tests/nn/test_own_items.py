"""The mixture of repeating and exploring, against its definition in plain numbers."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from posrec.nn.items.own_items import OwnItems

ITEMS = 6
OUTSIDE = (0.0, 0.0)
Session = dict[int, tuple[float, float]]  # item -> (delta, unnormalised r)


def mixture(
    products: list[float], session: Session, g_repeat: float
) -> tuple[list[float], OwnItems]:
    """p of every item, and the same session as OwnItems."""
    z = dict(enumerate(products, start=1))
    total = sum(r for _, r in session.values())
    raised = {item: math.exp(z[item] + session.get(item, OUTSIDE)[0]) for item in z}
    chances = []
    for item in z:
        repeated = session.get(item, OUTSIDE)[1] / total
        explored = raised[item] / sum(raised.values())
        chances.append(g_repeat * repeated + (1 - g_repeat) * explored)
    # The last slot is empty; its values must not matter.
    own = OwnItems(
        torch.tensor([[*session, 0]]),
        row(*(delta for delta, _ in session.values()), 9.0),
        row(*(math.log(g_repeat * r / total) for _, r in session.values()), 5.0),
        row(math.log(1 - g_repeat))[0],
    )
    return chances, own


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.double)


def test_by_hand() -> None:
    """Three items of equal product; item 1 is doubled in explore, and half of the mass is its
    repeat."""
    chances, own = mixture([0.0, 0.0, 0.0], {1: (math.log(2), 1.0)}, 0.5)
    assert chances == pytest.approx([0.5 + 0.5 * 2 / 4, 0.5 / 4, 0.5 / 4])
    computed = own.log_chances_of_all(torch.zeros(1, 3)).exp()
    assert computed[0].tolist() == pytest.approx(chances)


mixtures = given(
    st.lists(st.floats(-4, 4, width=32), min_size=ITEMS, max_size=ITEMS),
    st.dictionaries(
        st.integers(1, ITEMS),
        st.tuples(st.floats(-3, 3), st.floats(0.01, 5)),
        min_size=1,
        max_size=ITEMS,
    ),
    st.floats(0.01, 0.99),
)


@mixtures
def test_every_way_gives_the_chances_of_the_definition(
    products: list[float], session: Session, g_repeat: float
) -> None:
    chances, own = mixture(products, session, g_repeat)
    z = row(*products)
    of_all = own.log_chances_of_all(z).exp()[0]
    assert of_all.tolist() == pytest.approx(chances, rel=1e-6)
    log_normaliser = own.log_normaliser(z)
    for item in range(1, ITEMS + 1):
        delta = session.get(item, OUTSIDE)[0]
        log_explored = z[:, item - 1] + delta - log_normaliser
        chance = own.log_chances_of(torch.tensor([item]), log_explored).exp()
        assert float(chance) == pytest.approx(chances[item - 1], rel=1e-6)


def test_a_session_without_known_items_explores() -> None:
    empty = torch.zeros(1, 2)
    own = OwnItems(empty.long(), empty, empty - 1e4, torch.zeros(1))
    chances = own.log_chances_of_all(torch.zeros(1, 4)).exp()
    assert torch.allclose(chances, torch.full((1, 4), 0.25))
