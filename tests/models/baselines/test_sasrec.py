"""SASRec against a plain, slow re-statement of its equations, one session at a time."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from posrec.encodings.schemes import ENCODINGS
from posrec.models.baselines.sasrec import SASRec, SASRecConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks
from tests.models.checks import ITEMS, SESSIONS, sessions


def make(**changes) -> SASRec:
    torch.manual_seed(3)
    return (
        SASRec(ITEMS, replace(SASRecConfig(d=8, heads=2, max_length=9), **changes))
        .double()
        .eval()
    )


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return (
        centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias
    )


def slowly(model: SASRec, session: list[int]) -> Tensor:
    """The last click's F: loops over clicks and heads, each click attends to those up to itself."""
    length = len(session)
    d = model.config.d
    heads = model.config.heads
    positions = (
        torch.arange(length)[None],
        torch.arange(length - 1, -1, -1)[None],
        torch.tensor([length]),
    )
    encoded = model.encoding(*positions)[0]
    bias = torch.zeros(heads, length, length)
    if model.config.encoding == "rpe":
        bias = model.encoding.attention_bias(*positions)[0]
    scale = math.sqrt(d) if model.config.scaled else 1.0
    x = [
        scale * model.embedding.weight[item - 1] + encoded[place]
        for place, item in enumerate(session)
    ]
    for layer in model.layers:
        normal = [normed(layer.attention_norm, one) for one in x]
        projected = [layer.queries_keys_values.weight @ one for one in normal]
        queries, keys, values = zip(
            *(one.view(3, heads, d // heads) for one in projected), strict=True
        )
        for place in range(length):
            parts = []
            for head in range(heads):
                logits = torch.stack([
                    queries[place][head] @ keys[other][head] / math.sqrt(d // heads) + bias[head, place, other]
                    for other in range(place + 1)
                ])  # fmt: skip
                shares = logits.exp() / logits.exp().sum()
                parts.append(
                    sum(
                        shares[other] * values[other][head]
                        for other in range(place + 1)
                    )
                )
            x[place] = x[place] + torch.cat(parts)
        for place in range(length):
            wide = (
                layer.first.weight @ normed(layer.feed_forward_norm, x[place])
                + layer.first.bias
            )
            x[place] = (
                x[place] + layer.second.weight @ wide.clamp(min=0) + layer.second.bias
            )
    return normed(model.norm, x[-1])


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_every_encoding_agrees_with_the_equations(encoding: str) -> None:
    model = make(encoding=encoding)
    if encoding == "rpe":
        nn.init.normal_(model.encoding.table)
    checks.assert_agrees(model, slowly, SESSIONS)


@given(
    st.lists(sessions, min_size=1, max_size=4),
    st.sampled_from(["lpe", "ldpe"]),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], encoding: str, layers: int, scaled: bool
) -> None:
    checks.assert_agrees(
        make(encoding=encoding, layers=layers, scaled=scaled), slowly, batch
    )


def test_a_click_does_not_attend_to_later_ones() -> None:
    """The layers' outputs for the first clicks do not depend on later clicks."""
    model = make(layers=3)
    seen = []
    model.layers[1].register_forward_hook(
        lambda module, inputs, output: seen.append(output)
    )
    model.session_vectors(SessionBatch.of([[1, 2, 3]]))
    model.session_vectors(SessionBatch.of([[1, 2, 3, 4, 5]]))
    assert torch.allclose(seen[0], seen[1][:3], atol=1e-12)
    assert not torch.allclose(seen[0][1], seen[0][2])


def test_scores_depend_on_order_with_an_encoding_only() -> None:
    """Without one, one layer attends to the earlier clicks as a set."""
    swapped = SessionBatch.of([[1, 2, 3], [2, 1, 3]])
    for encoding, same in (("none", True), ("lpe", False), ("ldpe", False)):
        scores = make(encoding=encoding, layers=1).scores(swapped)
        assert torch.allclose(scores[0], scores[1], atol=1e-12) == same, encoding


def test_heads_must_divide_d() -> None:
    with pytest.raises(ValueError, match="heads=3 must divide d=8"):
        make(heads=3)
