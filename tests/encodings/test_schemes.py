"""Every scheme against values worked out by hand, the rules that all of them share, and schemes of
one's own."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from posrec.encodings.schemes import (
    ENCODINGS,
    LEARNED,
    RPE,
    THEORY_ONLY,
    attention_bias,
    make_encoding,
)

EVERY = {**ENCODINGS, **THEORY_ONLY}
DIMENSIONS = st.integers(2, 13)


def session(*lengths: int) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of plain sessions, right-padded: forward, backward, length."""
    length = torch.tensor(lengths)
    forward = torch.arange(max(lengths)).expand(len(lengths), -1)
    return forward, length.unsqueeze(1) - 1 - forward, length


def encoded(name: str, d: int, length: int, **options: int) -> list[list[float]]:
    """The encoding of one session in double precision, position by position."""
    encoding = make_encoding(name, d, length, **options).double()
    return encoding(*session(length))[0].tolist()


def near(expected: Any) -> Any:
    return pytest.approx(expected, abs=1e-15)


def with_table(name: str, rows: list[list[float]]) -> torch.nn.Module:
    encoding = ENCODINGS[name](len(rows[0]), len(rows))
    encoding.load_state_dict({"table": torch.tensor(rows)})
    return encoding.double()


# Position 1 of a session of 4 clicks: forward 1, backward 2. With d = 4 the frequencies are 1 and
# 1/100.
AT_ONE_OF_FOUR = {
    "none": [0.0, 0.0, 0.0, 0.0],
    "spe": [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
    "rspe": [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    "dpe": [math.sin(1), math.cos(1), math.sin(2), math.cos(2)],
    "aspe": [
        math.sin(1) + math.cos(2),
        math.cos(1) + math.sin(2),
        math.sin(0.01) + math.cos(0.02),
        math.cos(0.01) + math.sin(0.02),
    ],
    "2dspe": [math.sin(1), math.cos(1), math.sin(4), math.cos(4)],
    "rpe": [0.0, 0.0, 0.0, 0.0],
    "sum": [
        math.sin(1) + math.sin(2),
        math.cos(1) + math.cos(2),
        math.sin(0.01) + math.sin(0.02),
        math.cos(0.01) + math.cos(0.02),
    ],
}


@pytest.mark.parametrize("name", AT_ONE_OF_FOUR)
def test_fixed_scheme_at_position_1_of_4(name: str) -> None:
    values = EVERY[name](4, 4).double()(*session(4))
    assert values[0, 1].tolist() == near(AT_ONE_OF_FOUR[name])


TABLE = [
    [0.0, 1.0, 2.0, 3.0, 4.0],
    [10.0, 11.0, 12.0, 13.0, 14.0],
    [20.0, 21.0, 22.0, 23.0, 24.0],
]
# Position 0 of a session of 3 clicks, d = 5: forward reads row 0, backward row 2, the length 3 row
# 2.
AT_ZERO_OF_THREE = {
    "lpe": [0.0, 1.0, 2.0, 3.0, 4.0],
    "lrpe": [20.0, 21.0, 22.0, 23.0, 24.0],
    "ldpe": [0.0, 1.0, 22.0, 23.0, 24.0],
    "alpe": [0.0 + 21.0, 1.0 + 20.0, 2.0 + 23.0, 3.0 + 22.0, 4.0 + 24.0],
    "2dlpe": [0.0, 1.0, 22.0, 23.0, 24.0],
}


@pytest.mark.parametrize("name", LEARNED)
def test_learned_scheme_at_position_0_of_3(name: str) -> None:
    assert with_table(name, TABLE)(*session(3))[0, 0].tolist() == AT_ZERO_OF_THREE[name]


def test_the_frequency_bases_of_dpe_and_2dspe() -> None:
    dual = encoded("dpe", 8, 8)[5]
    over_half = encoded("dpe", 8, 8, over_half=True)[5]
    assert dual[2] == near(math.sin(5 / 10000 ** (2 / 8)))
    assert over_half[2] == near(math.sin(5 / 10000 ** (2 / 4)))
    assert over_half[7] == near(math.cos(2 / 10000 ** (2 / 4)))
    two_dimensional = encoded("2dspe", 8, 6)[3]
    of_position = [math.sin(3 / 100), math.cos(3 / 100)]
    of_length = [math.sin(6), math.cos(6), math.sin(6 / 100), math.cos(6 / 100)]
    assert two_dimensional[2:] == near(of_position + of_length)


def test_an_odd_d_leaves_out_the_last_cosine() -> None:
    slow = 3 / 10000 ** (2 / 3)
    assert encoded("spe", 3, 4)[3] == near([math.sin(3), math.cos(3), math.sin(slow)])
    assert encoded("dpe", 3, 4)[3] == near([math.sin(3), math.sin(0), math.cos(0)])
    assert encoded("aspe", 3, 5)[3][2] == near(math.sin(slow) + math.cos(slow / 3))


@pytest.mark.parametrize("name", EVERY)
@given(d=DIMENSIONS, length=st.integers(1, 9), padding=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_padding_changes_no_value(name: str, d: int, length: int, padding: int) -> None:
    encoding = EVERY[name](d, 7)
    alone = encoding(*session(length))
    padded = encoding(*session(length, length + padding))
    torch.testing.assert_close(padded[0, :length], alone[0])


# Which of its three arguments a scheme reads. The others must not change its values.
READS = {
    **dict.fromkeys(("none", "rpe"), ""),
    **dict.fromkeys(("spe", "lpe"), "forward"),
    **dict.fromkeys(("rspe", "lrpe"), "backward"),
    **dict.fromkeys(("dpe", "aspe", "ldpe", "alpe", "sum"), "forward backward"),
    **dict.fromkeys(("2dspe", "2dlpe"), "forward length"),
}


@pytest.mark.parametrize("name", EVERY)
@given(
    d=DIMENSIONS,
    first=st.tuples(*[st.integers(0, 19)] * 3),
    second=st.tuples(*[st.integers(0, 19)] * 3),
)
@settings(max_examples=30, deadline=None)
def test_a_scheme_depends_on_what_it_reads_and_on_all_of_it(
    name: str, d: int, first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    """A repeated item has forward and backward positions that do not add up to the length, so they
    vary freely."""
    encoding = EVERY[name](d, 21).double()
    one, other = [
        encoding(
            torch.tensor([[forward]]),
            torch.tensor([[backward]]),
            torch.tensor([length + 1]),
        )
        for forward, backward, length in (first, second)
    ]
    arguments = zip(("forward", "backward", "length"), first, second, strict=True)
    same = all(a == b for argument, a, b in arguments if argument in READS[name])
    # The plain sum is the same when the two positions are exchanged.
    same = same or (name == "sum" and first[:2] == second[1::-1])
    assert torch.allclose(one, other, rtol=0, atol=1e-13) == same


@pytest.mark.parametrize("name", LEARNED)
def test_positions_past_the_end_share_the_last_row(name: str) -> None:
    encoding = with_table(name, TABLE)
    far = torch.tensor([[2, 3, 1000]])
    last = torch.tensor([[2, 2, 2]])
    at_last = encoding(last, last, torch.tensor([3]))
    assert torch.equal(encoding(far, far, torch.tensor([1000])), at_last)
    assert not torch.equal(encoding(last - 1, last - 1, torch.tensor([2])), at_last)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_the_output_has_the_modules_dtype(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exact = EVERY[name](6, 8).double()
    cast = EVERY[name](6, 8)
    cast.load_state_dict(exact.state_dict())
    rounded = cast.to(dtype)(*session(8))
    assert rounded.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps
    expected = exact(*session(8))
    torch.testing.assert_close(rounded.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_the_result_and_not_the_position(
    dtype: torch.dtype,
) -> None:
    """Position 299 can't be written in bfloat16, and sin(299) is nothing like sin(300)."""
    rounded = make_encoding("spe", 4, 300).to(dtype)(*session(300))
    exact = make_encoding("spe", 4, 300).double()(*session(300))
    tolerance = torch.finfo(dtype).eps
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", EVERY)
def test_the_output_is_on_the_inputs_device(name: str) -> None:
    """The meta device stands in for an accelerator."""
    encoding = EVERY[name](6, 8)
    if name in LEARNED:
        encoding = encoding.to("meta")
    inputs = [tensor.to("meta") for tensor in session(3, 8)]
    assert encoding(*inputs).device.type == "meta"


class EveryEncoding(torch.nn.ModuleDict):
    """One graph is compiled many times faster than thirteen."""

    def forward(
        self, forward: Tensor, backward: Tensor, length: Tensor
    ) -> dict[str, Tensor]:
        return {
            name: encoding(forward, backward, length) for name, encoding in self.items()
        }


@pytest.mark.slow
def test_the_compiled_form_gives_the_same_values() -> None:
    """The backend generates no code, which would take a C compiler and a minute."""
    every = EveryEncoding({name: scheme(7, 4) for name, scheme in EVERY.items()})
    compiled = torch.compile(every, backend="aot_eager", fullgraph=True)
    for batch in (session(3), session(1, 6)):
        torch.testing.assert_close(compiled(*batch), every(*batch))


def test_all_learned_schemes_have_as_many_weights() -> None:
    for name in LEARNED:
        weights = make_encoding(name, 10, 30).parameters()
        assert sum(weight.numel() for weight in weights) == 300


@pytest.mark.parametrize(
    ("scheme", "d", "max_length", "message"),
    [
        ("sum", 4, 3, "'sum' is not known"),  # for the theory alone
        ("spe", 1, 5, "d=1"),
        ("spe", 4, 0, "max_length=0"),
    ],
)
def test_what_is_refused(scheme: str, d: int, max_length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_encoding(scheme, d=d, max_length=max_length)


# The relative encoding adds a bias to attention instead of vectors to items.


def relative() -> RPE:
    encoding = RPE(d=4, max_length=3, heads=2)
    encoding.load_state_dict(
        {"table": torch.arange(5.0).unsqueeze(1) + 100 * torch.arange(2)}
    )
    return encoding


def test_rpe_biases_attention_by_the_offset_from_query_to_key() -> None:
    bias = attention_bias(relative(), *session(3))
    assert bias is not None
    assert bias[0, 0].tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]
    assert torch.equal(bias[0, 1], bias[0, 0] + 100)
    # Offsets past the table share its ends.
    far = (torch.tensor([[0, 9]]), torch.tensor([[9, 0]]), torch.tensor([10]))
    past = attention_bias(relative(), *far)
    assert past is not None
    assert past[0, 0].tolist() == [[2, 4], [0, 2]]
    assert attention_bias(make_encoding("ldpe", d=4, max_length=3), *session(3)) is None


def test_rpe_starts_without_a_preference_and_can_learn_one() -> None:
    encoding = make_encoding("rpe", d=4, max_length=3, heads=2)
    bias = attention_bias(encoding, *session(2))
    assert bias is not None
    assert not bias.any()
    bias[:, :, 0, 1].sum().backward()
    gradient = encoding.get_parameter("table").grad
    assert gradient.tolist() == [[0, 0]] * 3 + [[1, 1], [0, 0]]


# Schemes of one's own.


def counting(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    return torch.stack([forward, backward], dim=-1).float()


class Scaled(torch.nn.Module):
    def __init__(self, d: int, max_length: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((d,), 1 / max_length))

    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return forward.unsqueeze(-1) * self.weight


def test_a_users_own_function_module_or_class_is_accepted() -> None:
    function = make_encoding(counting, d=2, max_length=9)
    assert function(*session(2))[0].tolist() == [[0, 1], [1, 0]]
    built = make_encoding(Scaled, d=3, max_length=4)
    assert built(*session(2))[0, 1].tolist() == [0.25] * 3
    module = Scaled(3, 4).to("meta")  # like a module that is already on an accelerator
    assert make_encoding(module, d=3, max_length=9) is module


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (torch.tensor([[0, 1]]), r"torch\.int64 \(1, 2\)"),
        (torch.zeros(1, 2, 3, dtype=torch.int64), r"torch\.int64 \(1, 2, 3\)"),
        (torch.zeros(1, 2, 4), r"torch\.float32 \(1, 2, 4\)"),
        ([[0.0]], "list"),
    ],
)
def test_a_wrong_shape_from_a_users_scheme_is_reported_at_once(
    wrong: Any, seen: str
) -> None:
    with pytest.raises(ValueError, match=rf"gave {seen} .* \(1, 2, 3\)"):
        make_encoding(lambda forward, backward, length: wrong, d=3, max_length=9)
