"""The relative encoding, which adds a bias to attention instead of vectors to items."""

import warnings

import torch
from tests.encodings.plain_sessions import session

from posrec.encodings.schemes import RPE, attention_bias, make_encoding


def relative(heads: int = 2) -> RPE:
    encoding = RPE(d=4, max_length=3, heads=heads)
    encoding.load_state_dict({"table": torch.arange(5.0).unsqueeze(1) + 100 * torch.arange(heads)})
    return encoding


def test_rpe_biases_attention_by_the_offset_from_query_to_key() -> None:
    bias = attention_bias(relative(), *session(3))
    assert bias is not None
    assert bias[0, 0].tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]
    assert torch.equal(bias[0, 1], bias[0, 0] + 100)


def test_rpe_offsets_past_the_table_share_its_ends() -> None:
    bias = attention_bias(relative(heads=1), torch.tensor([[0, 9]]), torch.tensor([[9, 0]]), torch.tensor([10]))
    assert bias is not None
    assert bias[0, 0].tolist() == [[2, 4], [0, 2]]


def test_rpe_starts_without_a_preference_and_can_learn_one() -> None:
    encoding = make_encoding("rpe", d=4, max_length=3, heads=2)
    bias = attention_bias(encoding, *session(2))
    assert bias is not None
    assert not bias.any()
    bias[:, :, 0, 1].sum().backward()
    assert encoding.get_parameter("table").grad.tolist() == [[0, 0], [0, 0], [0, 0], [1, 1], [0, 0]]


def test_the_scripted_rpe_keeps_its_bias() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(relative())
    assert torch.equal(scripted.attention_bias(*session(4)), relative().attention_bias(*session(4)))


def test_other_encodings_have_no_bias() -> None:
    assert attention_bias(make_encoding("ldpe", d=4, max_length=3), *session(3)) is None
