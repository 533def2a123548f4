"""The mixture of repeating and exploring, against its definition in plain numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.nn.items.own_items import OwnItems

ITEMS = 6
numbers = st.floats(-4, 4, width=32)


def mixture(
    products: list[float], session: dict[int, tuple[float, float]], g_repeat: float
) -> tuple[list[float], OwnItems]:
    """p of every item, and the same session as OwnItems. `session`: item -> (delta, unnormalised
    r)."""
    z = dict(enumerate(products, start=1))
    total = sum(r for _, r in session.values())
    raised = {item: math.exp(z[item] + session.get(item, (0.0, 0.0))[0]) for item in z}
    chances = [
        g_repeat * session.get(item, (0.0, 0.0))[1] / total
        + (1 - g_repeat) * raised[item] / sum(raised.values())
        for item in z
    ]
    slots = [*session, 0]  # and an empty slot, whose values must not matter
    own = OwnItems(
        torch.tensor([slots]),
        torch.tensor([[*(z[item] for item in session), 77.0]], dtype=torch.double),
        torch.tensor(
            [[*(delta for delta, _ in session.values()), 9.0]], dtype=torch.double
        ),
        torch.tensor(
            [[*(math.log(g_repeat * r / total) for _, r in session.values()), 5.0]],
            dtype=torch.double,
        ),
        torch.tensor([math.log(1 - g_repeat)], dtype=torch.double),
    )
    return chances, own


def test_by_hand() -> None:
    """Three items of equal product; item 1 is doubled in explore, and half of the mass is its
    repeat."""
    chances, own = mixture([0.0, 0.0, 0.0], {1: (math.log(2), 1.0)}, 0.5)
    assert chances == pytest.approx([0.5 + 0.5 * 2 / 4, 0.5 / 4, 0.5 / 4])
    assert own.log_chances_of_all(torch.zeros(1, 3)).exp()[0].tolist() == pytest.approx(
        chances
    )


sessions = st.dictionaries(
    st.integers(1, ITEMS),
    st.tuples(st.floats(-3, 3), st.floats(0.01, 5)),
    min_size=1,
    max_size=ITEMS,
)


@given(
    st.lists(numbers, min_size=ITEMS, max_size=ITEMS), sessions, st.floats(0.01, 0.99)
)
def test_every_way_gives_the_chances_of_the_definition(
    products: list[float], session: dict[int, tuple[float, float]], g_repeat: float
) -> None:
    chances, own = mixture(products, session, g_repeat)
    z = torch.tensor([products], dtype=torch.double)
    log_sum = z.logsumexp(1)
    assert own.log_chances_of_all(z).exp()[0].tolist() == pytest.approx(
        chances, rel=1e-6
    )
    for item in range(1, ITEMS + 1):
        target = torch.tensor([item])
        log_explored = (
            z[:, item - 1]
            + session.get(item, (0.0, 0.0))[0]
            - own.log_normaliser(log_sum)
        )
        found = own.log_chances_of(target, log_explored).exp()
        assert float(found) == pytest.approx(chances[item - 1], rel=1e-6)


def test_a_session_without_known_items_explores() -> None:
    empty = torch.zeros(1, 2)
    own = OwnItems(empty.long(), empty, empty, empty - 1e4, torch.zeros(1))
    assert torch.allclose(
        own.log_chances_of_all(torch.zeros(1, 4)).exp(), torch.full((1, 4), 0.25)
    )
