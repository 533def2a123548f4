"""The paper's statements, and proof that their checks can fail."""

import pytest
import torch
from torch import Tensor

from posrec.encodings.awareness import Awareness, analyse, build, examined_names, tabulate
from posrec.encodings.schemes import RPE
from posrec.encodings.theory import PAPER, PaperClaim, bias_is_relative, differences, mirrored, shares_steps, statements

FALSE = {"Section 3.4, ASPE linear", "Section 3.4, 2DSPE aware"}


@pytest.mark.parametrize(("max_length", "d"), [(12, 8), pytest.param(70, 100, marks=pytest.mark.slow)])
def test_all_statements_but_two_hold(max_length: int, d: int) -> None:
    checked = statements(max_length, d)
    assert {statement.name for statement in checked if not statement.holds} == FALSE
    names = [statement.name for statement in checked]
    assert len(names) == len(set(names)) == 15
    for numbered in ("Property 3.1", "Property 3.2", "Property 3.3", "Theorem 3.4", "Corollary 3.5", "Theorem 4.1"):
        assert numbered in names


def test_every_scheme_has_the_papers_claim() -> None:
    assert set(PAPER) == set(examined_names())


def test_where_the_paper_and_the_definitions_differ() -> None:
    differing = {name: differences(analyse(name, 20, 8), claim) for name, claim in PAPER.items()}
    assert {name: found for name, found in differing.items() if found} == {"aspe": ("linear",), "2dspe": ("forward",)}


def test_only_claims_that_were_made_can_differ() -> None:
    found = analyse("spe", 5, 4)
    assert differences(found, PaperClaim()) == ()
    assert differences(found, PaperClaim(False, True, False, True, False)) == (
        "forward",
        "backward",
        "unique_within_length",
        "unique",
        "linear",
    )


def test_steps_that_change_with_the_length_are_found() -> None:
    def faster_in_longer_sessions(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return torch.stack([forward, forward * (length.unsqueeze(1) // 4)], dim=-1).double()

    table = tabulate(build(faster_in_longer_sessions, 6, 2), 6)
    assert shares_steps(table, on(0), backward=False)
    assert not shares_steps(table, on(1), backward=False)
    assert not shares_steps(table, on(0, 1), backward=False)


def test_backward_steps_are_lined_up_at_the_last_click() -> None:
    table = tabulate(build(lambda f, b, n: torch.stack([b**2, f**2], dim=-1).double(), 6, 2), 6)
    assert shares_steps(table, on(0), backward=True)
    assert not shares_steps(table, on(0), backward=False)
    assert shares_steps(table, on(1), backward=False)
    assert not shares_steps(table, on(1), backward=True)


def test_rounding_does_not_count_as_another_step() -> None:
    def noisy(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return (forward + 1e-15 * length.unsqueeze(1)).unsqueeze(-1).expand(-1, -1, 2).double() / 10

    assert shares_steps(tabulate(build(noisy, 6, 2), 6), on(0, 1), backward=False)


def test_a_bias_must_be_relative_and_must_change_with_the_query() -> None:
    relative = RPE(2, 6)
    assert not bias_is_relative(relative, 6)  # all zero: for one j nothing changes with i
    torch.nn.init.normal_(relative.table, generator=torch.Generator().manual_seed(1))
    assert bias_is_relative(relative, 6)

    class Absolute(RPE):
        def attention_bias(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
            return super().attention_bias(forward, backward, length) + (backward[:, None, :, None] == 3)

    absolute = Absolute(2, 6)
    absolute.load_state_dict(relative.state_dict())
    assert bias_is_relative(absolute, 3)
    assert not bias_is_relative(absolute, 4)


def on(*dimensions: int) -> Awareness:
    return Awareness(True, True, dimensions, (), None)


def test_only_the_plain_sum_and_constants_are_symmetric() -> None:
    mirrors = [name for name in examined_names() if mirrored(tabulate(build(name, 9, 6), 9))]
    assert mirrors == ["none", "rpe", "sum"]
