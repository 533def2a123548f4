"""Every scheme against values worked out by hand, and the rules that all of them share."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encodings.plain_sessions import session
from torch import Tensor

from posrec.encodings.schemes import (
    ENCODINGS,
    LEARNED,
    THEORY_ONLY,
    SumOfSPEAndRSPE,
    make_encoding,
)

EVERY = {**ENCODINGS, **THEORY_ONLY}
DIMENSIONS = st.integers(2, 13)


def with_table(name: str, rows: list[list[float]]) -> torch.nn.Module:
    encoding = ENCODINGS[name](len(rows[0]), len(rows))
    encoding.load_state_dict({"table": torch.tensor(rows)})
    return encoding.double()


# Position 1 of a session of 4 clicks: forward 1, backward 2. With d = 4 the frequencies are 1 and 1/100.
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
    encoded = EVERY[name](4, 4).double()(*session(4))
    assert encoded[0, 1].tolist() == pytest.approx(AT_ONE_OF_FOUR[name], abs=1e-15)


TABLE = [[0.0, 1.0, 2.0, 3.0, 4.0], [10.0, 11.0, 12.0, 13.0, 14.0], [20.0, 21.0, 22.0, 23.0, 24.0]]
# Position 0 of a session of 3 clicks, d = 5: forward reads row 0, backward row 2, the length 3 row 2.
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


def test_2dlpe_reads_the_length_not_the_backward_position() -> None:
    assert with_table("2dlpe", TABLE)(*session(2))[0].tolist() == [[0, 1, 12, 13, 14], [10, 11, 12, 13, 14]]


def test_the_frequency_base_of_dpe_is_over_d_or_over_the_half() -> None:
    forward, backward, length = session(8)
    as_written = make_encoding("dpe", d=8, max_length=8).double()(forward, backward, length)
    over_half = make_encoding("dpe", d=8, max_length=8, over_half=True).double()(forward, backward, length)
    assert as_written[0, 5, 2].item() == pytest.approx(math.sin(5 / 10000 ** (2 / 8)), abs=1e-15)
    assert over_half[0, 5, 2].item() == pytest.approx(math.sin(5 / 10000 ** (2 / 4)), abs=1e-15)
    assert over_half[0, 5, 7].item() == pytest.approx(math.cos(2 / 10000 ** (2 / 4)), abs=1e-15)


def test_2dspe_has_its_own_base() -> None:
    encoded = make_encoding("2dspe", d=8, max_length=8).double()(*session(6))
    expected = [math.sin(3 / 100), math.cos(3 / 100), math.sin(6), math.cos(6), math.sin(6 / 100), math.cos(6 / 100)]
    assert encoded[0, 3, 2:].tolist() == pytest.approx(expected, abs=1e-15)


def test_an_odd_d_leaves_out_the_last_cosine() -> None:
    wide = make_encoding("spe", d=3, max_length=4).double()(*session(4))[0, 3]
    slow = 3 / 10000 ** (2 / 3)
    assert wide.tolist() == pytest.approx([math.sin(3), math.cos(3), math.sin(slow)], abs=1e-15)
    dual = make_encoding("dpe", d=3, max_length=4).double()(*session(4))[0, 3]
    assert dual.tolist() == pytest.approx([math.sin(3), math.sin(0), math.cos(0)], abs=1e-15)
    added = make_encoding("aspe", d=3, max_length=4).double()(*session(5))[0, 3]
    assert added[2].item() == pytest.approx(math.sin(slow) + math.cos(slow / 3), abs=1e-15)


@pytest.mark.parametrize("name", EVERY)
@given(d=DIMENSIONS, lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), rows=st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_any_d_and_length_give_the_right_shape(name: str, d: int, lengths: list[int], rows: int) -> None:
    encoded = EVERY[name](d, rows)(*session(*lengths))
    assert encoded.shape == (len(lengths), max(lengths), d)
    assert torch.isfinite(encoded).all()


@pytest.mark.parametrize("name", EVERY)
@given(d=DIMENSIONS, length=st.integers(1, 9), padding=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_padding_changes_no_value(name: str, d: int, length: int, padding: int) -> None:
    encoding = EVERY[name](d, 7)
    alone, padded = encoding(*session(length)), encoding(*session(length, length + padding))
    torch.testing.assert_close(padded[0, :length], alone[0])


# Which of its three arguments a scheme reads. The others must not change its values.
READS = {
    "none": "",
    "spe": "forward",
    "rspe": "backward",
    "dpe": "forward backward",
    "aspe": "forward backward",
    "2dspe": "forward length",
    "lpe": "forward",
    "lrpe": "backward",
    "ldpe": "forward backward",
    "alpe": "forward backward",
    "2dlpe": "forward length",
    "rpe": "",
    "sum": "forward backward",
}


@pytest.mark.parametrize("name", EVERY)
@given(d=DIMENSIONS, first=st.tuples(*[st.integers(0, 19)] * 3), second=st.tuples(*[st.integers(0, 19)] * 3))
@settings(max_examples=30, deadline=None)
def test_a_scheme_depends_on_what_it_reads_and_on_all_of_it(
    name: str, d: int, first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    """A repeated item has forward and backward positions that do not add up to the length, so they vary freely."""
    encoding = EVERY[name](d, 21).double()
    one, other = (
        encoding(torch.tensor([[forward]]), torch.tensor([[backward]]), torch.tensor([length + 1]))
        for forward, backward, length in (first, second)
    )
    read = [which in READS[name] for which in ("forward", "backward", "length")]
    same = all(a == b for a, b, is_read in zip(first, second, read, strict=True) if is_read)
    # The plain sum is the same when the two positions are exchanged.
    same = same or (name == "sum" and first[:2] == second[1::-1])
    assert torch.allclose(one, other, rtol=0, atol=1e-13) == same


@pytest.mark.parametrize("name", LEARNED)
def test_positions_past_the_end_share_the_last_row(name: str) -> None:
    encoding = with_table(name, TABLE)
    far, last = torch.tensor([[2, 3, 1000]]), torch.tensor([[2, 2, 2]])
    at_last = encoding(last, last, torch.tensor([3]))
    assert torch.equal(encoding(far, far, torch.tensor([1000])), at_last)
    assert not torch.equal(encoding(last - 1, last - 1, torch.tensor([2])), at_last)


# (rows read by the first d // 2 columns, rows read by the rest) for forward 1, backward 3, length 3
USED = {"lpe": (1, 1), "lrpe": (3, 3), "ldpe": (1, 3), "2dlpe": (1, 2)}


@pytest.mark.parametrize("name", USED)
def test_gradients_reach_exactly_the_rows_that_were_used(name: str) -> None:
    encoding = ENCODINGS[name](5, 6)
    encoding(torch.tensor([[1]]), torch.tensor([[3]]), torch.tensor([3])).sum().backward()
    expected = torch.zeros(6, 5)
    expected[USED[name][0], :2] = 1
    expected[USED[name][1], 2:] = 1
    assert torch.equal(encoding.get_parameter("table").grad, expected)


def test_gradients_of_alpe_reach_both_rows_with_columns_exchanged() -> None:
    encoding = ENCODINGS["alpe"](5, 6)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    (encoding(torch.tensor([[1]]), torch.tensor([[3]]), torch.tensor([3])) * weights).sum().backward()
    expected = torch.zeros(6, 5)
    expected[1] = weights
    expected[3] = torch.tensor([2.0, 1.0, 4.0, 3.0, 5.0])
    assert torch.equal(encoding.get_parameter("table").grad, expected)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_output_has_the_modules_dtype(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exact = EVERY[name](6, 8).double()
    cast = EVERY[name](6, 8)
    cast.load_state_dict(exact.state_dict())
    encoded = cast.to(dtype)(*session(8))
    assert encoded.dtype == dtype
    torch.testing.assert_close(encoded.double(), exact(*session(8)), rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_the_result_and_not_the_position(dtype: torch.dtype) -> None:
    """Position 299 can't be written in bfloat16, and sin(299) is nothing like sin(300)."""
    encoded = make_encoding("spe", 4, 300).to(dtype)(*session(300))
    exact = make_encoding("spe", 4, 300).double()(*session(300))
    torch.testing.assert_close(encoded.double(), exact, rtol=0, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", EVERY)
def test_the_output_is_on_the_inputs_device(name: str) -> None:
    """The meta device stands in for an accelerator: it refuses to mix with the CPU just the same."""
    encoding = EVERY[name](6, 8)
    if name in LEARNED:
        encoding = encoding.to("meta")
    inputs = [tensor.to("meta") for tensor in session(3, 8)]
    assert encoding(*inputs).device.type == "meta"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("d", [2, 7])
def test_the_scripted_form_gives_the_same_values(name: str, d: int) -> None:
    encoding = EVERY[name](d, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit still works, and is still used to deploy models
        scripted = torch.jit.script(encoding)
    for lengths in ((3,), (1, 6)):
        assert torch.equal(scripted(*session(*lengths)), encoding(*session(*lengths)))


class EveryEncoding(torch.nn.ModuleDict):
    """All encodings at once: one graph is compiled many times faster than thirteen."""

    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> dict[str, Tensor]:
        return {name: encoding(forward, backward, length) for name, encoding in self.items()}


@pytest.mark.slow
def test_the_compiled_form_gives_the_same_values() -> None:
    """The backend traces and differentiates but generates no code, which would take a C compiler and a minute."""
    every = EveryEncoding({name: scheme(7, 4) for name, scheme in EVERY.items()})
    compiled = torch.compile(every, backend="aot_eager", fullgraph=True)
    for lengths in ((3,), (1, 6)):
        torch.testing.assert_close(compiled(*session(*lengths)), every(*session(*lengths)))


@pytest.mark.process
@pytest.mark.slow
def test_the_generated_code_gives_the_same_values() -> None:
    for name, scheme in EVERY.items():
        encoding = scheme(7, 4)
        compiled = torch.compile(encoding, fullgraph=True)
        torch.testing.assert_close(compiled(*session(1, 6)), encoding(*session(1, 6)), msg=name)


def test_all_learned_schemes_have_as_many_weights() -> None:
    sizes = {name: sum(weight.numel() for weight in make_encoding(name, 10, 30).parameters()) for name in LEARNED}
    assert set(sizes.values()) == {300}


def test_names_are_those_of_the_interface() -> None:
    assert " ".join(ENCODINGS) == "none spe rspe dpe aspe 2dspe lpe lrpe ldpe alpe 2dlpe rpe"


def test_the_plain_sum_is_not_offered_to_models() -> None:
    with pytest.raises(ValueError, match="encoding='sum' is not known; choose one of: none spe"):
        make_encoding("sum", d=4, max_length=3)
    assert THEORY_ONLY["sum"] is SumOfSPEAndRSPE


@pytest.mark.parametrize(
    ("d", "max_length", "named"), [(1, 5, "d=1: must be at least 2"), (4, 0, "max_length=0: must be at least 1")]
)
def test_a_size_below_the_allowed_range_is_named(d: int, max_length: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make_encoding("spe", d=d, max_length=max_length)
