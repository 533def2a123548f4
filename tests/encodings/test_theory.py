"""The paper's statements, and proof that their checks can fail."""

import pytest
import torch
from torch import Tensor

from posrec.encodings.awareness import (
    Awareness,
    analyse,
    build,
    examined_names,
    tabulate,
)
from posrec.encodings.schemes import RPE
from posrec.encodings.theory import (
    PAPER,
    PaperClaim,
    bias_is_relative,
    differences,
    mirrored,
    shares_steps,
    statements,
)

FALSE = {"Section 3.4, ASPE linear", "Section 3.4, 2DSPE aware"}


@pytest.mark.parametrize(
    ("max_length", "d"), [(12, 8), pytest.param(70, 100, marks=pytest.mark.slow)]
)
def test_all_statements_but_two_hold(max_length: int, d: int) -> None:
    checked = statements(max_length, d)
    assert {statement.name for statement in checked if not statement.holds} == FALSE
    names = [statement.name for statement in checked]
    assert len(names) == len(set(names)) == 15
    numbered = [f"Property 3.{number}" for number in (1, 2, 3)]
    numbered += ["Theorem 3.4", "Corollary 3.5", "Theorem 4.1"]
    assert set(numbered) <= set(names)


def test_where_the_paper_and_the_definitions_differ() -> None:
    differing = {
        name: differences(analyse(name, 20, 8), PAPER[name])
        for name in examined_names()
    }
    assert differing.pop("aspe") == ("linear",)
    assert differing.pop("2dspe") == ("forward",)
    assert not any(differing.values())


def test_only_claims_that_were_made_can_differ() -> None:
    analysis = analyse("spe", 5, 4)
    assert differences(analysis, PaperClaim()) == ()
    assert len(differences(analysis, PaperClaim(False, True, False, True, False))) == 5


def planted(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    """By position, by reverse position, with steps that grow with the length, and with rounding
    noise."""
    faster = forward * (length.unsqueeze(1) // 4)
    noisy = forward / 10 + 1e-16 * length.unsqueeze(1)
    return torch.stack([forward**2, backward**2, faster, noisy], dim=-1).double()


@pytest.mark.parametrize(
    ("dimensions", "backward", "shared"),
    [
        ((0,), False, True),
        ((0,), True, False),
        ((1,), True, True),
        ((2,), False, False),
        ((0, 2), False, False),
        ((0, 3), False, True),
    ],
)
def test_steps_that_change_with_the_length_are_found(
    dimensions: tuple[int, ...], backward: bool, shared: bool
) -> None:
    table = tabulate(build(planted, 6, 4), 6)
    awareness = Awareness(True, True, dimensions, (), None)
    assert shares_steps(table, awareness, backward) == shared


def test_a_bias_must_be_relative_and_must_change_with_the_query() -> None:
    relative = RPE(2, 6)
    # All zero: for one j nothing changes with i.
    assert not bias_is_relative(relative, 6)
    torch.nn.init.normal_(relative.table, generator=torch.Generator().manual_seed(1))
    assert bias_is_relative(relative, 6)

    class Absolute(RPE):
        def attention_bias(
            self, forward: Tensor, backward: Tensor, length: Tensor
        ) -> Tensor:
            bias = super().attention_bias(forward, backward, length)
            return bias + (backward[:, None, :, None] == 3)

    absolute = Absolute(2, 6)
    absolute.load_state_dict(relative.state_dict())
    assert bias_is_relative(absolute, 3)
    assert not bias_is_relative(absolute, 4)


def test_only_the_plain_sum_and_constants_are_symmetric() -> None:
    mirrors = [
        name for name in examined_names() if mirrored(tabulate(build(name, 9, 6), 9))
    ]
    assert mirrors == ["none", "rpe", "sum"]
