"""SASRec against a plain, slow re-statement of its equations, one session at a time."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from posrec.encodings.schemes import ENCODINGS
from posrec.models.baselines.sasrec import SASRec, SASRecConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks
from tests.models.checks import SESSIONS, sessions


def make(**changes: Any) -> SASRec:
    config = SASRecConfig(d=8, heads=2, max_length=9)
    return checks.build(SASRec, config, **changes)


def normed(norm: Any, x: Tensor) -> Tensor:
    centred = x - x.mean()
    deviation = (centred.square().mean() + norm.eps).sqrt()
    return centred / deviation * norm.weight + norm.bias


def slowly(model: SASRec, session: list[int]) -> Tensor:
    """The last click's F: loops over clicks and heads, each click attends to those up to itself."""
    length = len(session)
    config = model.config
    forward = torch.arange(length)[None]
    positions = (forward, length - 1 - forward, torch.tensor([length]))
    bias = torch.zeros(config.heads, length, length)
    if config.encoding == "rpe":
        bias = model.encoding.attention_bias(*positions)[0]
    scale = math.sqrt(config.d) if config.scaled else 1.0
    vectors = [scale * model.embedding.weight[item - 1] for item in session]
    x = list(torch.stack(vectors) + model.encoding(*positions)[0])
    for layer in model.layers:
        attended = attention_slowly(layer, x, bias)
        for position in range(length):
            click = x[position] + attended[position]
            inner = layer.first.weight @ normed(layer.feed_forward_norm, click)
            inner = (inner + layer.first.bias).clamp(min=0)
            x[position] = click + layer.second.weight @ inner + layer.second.bias
    return normed(model.norm, x[-1])


def attention_slowly(layer: Any, x: list[Tensor], bias: Tensor) -> list[Tensor]:
    """What each click reads, its heads side by side."""
    d = len(x[0])
    width = d // layer.heads
    projected = []
    for vector in x:
        vector = layer.queries_keys_values.weight @ normed(layer.attention_norm, vector)
        projected.append(vector.view(3, layer.heads, width))
    attended = []
    for position, (queries, _, _) in enumerate(projected):
        seen = projected[: position + 1]
        heads = []
        for head in range(layer.heads):
            keys = torch.stack([keys[head] for _, keys, _ in seen])
            values = torch.stack([values[head] for _, _, values in seen])
            logits = keys @ queries[head] / math.sqrt(width)
            logits = logits + bias[head, position, : position + 1]
            heads.append(logits.softmax(0) @ values)
        attended.append(torch.cat(heads))
    return attended


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_every_encoding_agrees_with_the_equations(encoding: str) -> None:
    model = make(encoding=encoding)
    if encoding == "rpe":
        nn.init.normal_(model.encoding.get_parameter("table"))
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
    model = make(encoding=encoding, layers=layers, scaled=scaled)
    checks.assert_agrees(model, slowly, batch)


def test_scores_depend_on_order_with_an_encoding_only() -> None:
    """Without one, one layer attends to the earlier clicks as a set."""
    swapped = SessionBatch.of([[1, 2, 3], [2, 1, 3]])
    for encoding, same in (("none", True), ("lpe", False), ("ldpe", False)):
        scores = make(encoding=encoding, layers=1).scores(swapped)
        assert torch.allclose(scores[0], scores[1], atol=1e-12) == same, encoding


def test_heads_must_divide_d() -> None:
    with pytest.raises(ValueError, match="heads=3 must divide d=8"):
        make(heads=3)
