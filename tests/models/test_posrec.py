"""PosRec against a plain, slow re-statement of the paper's equations, one session at a time."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from posrec.encodings.schemes import ENCODINGS
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks
from tests.models.checks import sessions

SMALL = PosRecConfig(d=8, heads=2, max_length=9)


def slowly(model: PosRec, session: list[int]) -> Tensor:
    """h of one session: loops over nodes, dictionaries of edges, no packing, no masks."""
    config = model.config
    nodes = list(dict.fromkeys(session))
    edges = checks.edges_with_anchors(session, config.anchors, config.normalize)
    vectors = checks.look_up(model, session)
    updated = checks.gated_graph_slowly(model.graph, vectors, edges)

    # A repeated item has the positions of its earliest and of its latest click.
    forward = torch.tensor([[session.index(node) for node in nodes]])
    backward = torch.tensor([[session[::-1].index(node) for node in nodes]])
    positions = (forward, backward, torch.tensor([len(session)]))
    hidden = torch.stack([updated[node] for node in nodes])
    hidden = hidden + model.encoding(*positions)[0]
    bias = None
    if config.encoding == "rpe":
        bias = model.encoding.attention_bias(*positions)[0]
    for layer in model.transformer:
        hidden = transformer_slowly(layer, hidden, config.heads, bias)
    last = nodes.index(session[-1])
    first = nodes.index(session[0])
    return (
        config.lambda0 * updated[session[-1]]
        + config.lambda1 * hidden[last]
        + config.lambda2 * hidden[first]
    )


def transformer_slowly(
    layer: Any, x: Tensor, heads: int, bias: Tensor | None
) -> Tensor:
    queries, keys, values = layer.queries_keys_values(x).chunk(3, dim=1)
    width = x.shape[1] // heads
    attended = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        logits = queries[:, columns] @ keys[:, columns].T / math.sqrt(width)
        if bias is not None:
            logits = logits + bias[head]
        attended.append(logits.softmax(1) @ values[:, columns])
    x = layer.after_attention(x + layer.out(torch.cat(attended, 1)))
    return layer.after_feed_forward(x + layer.narrow(layer.widen(x).relu()))


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_every_encoding_agrees_with_the_equations(encoding: str) -> None:
    model = checks.build(PosRec, SMALL, encoding=encoding)
    checks.assert_agrees(model, slowly, checks.SESSIONS)


@settings(max_examples=60)
@given(
    st.lists(sessions, min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.25, 1.0, 2.0]),
)
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], anchors: bool, normalize: bool, lambda2: float
) -> None:
    config = replace(SMALL, anchors=anchors, normalize=normalize, lambda2=lambda2)
    model = checks.build(PosRec, config, layers=2)
    checks.assert_agrees(model, slowly, batch, checks.FLOAT32 if normalize else 1e-11)


@given(st.lists(sessions, min_size=1, max_size=4), st.sampled_from(["ldpe", "rpe"]))
def test_with_distances_by_doubling_it_is_the_same(
    batch: list[list[int]], encoding: str
) -> None:
    """What is exported."""
    model = checks.build(PosRec, SMALL, encoding=encoding, layers=2)
    expected = model.session_vectors(SessionBatch.of(batch))
    exported = model.session_vectors(replace(SessionBatch.of(batch), longest=9))
    assert torch.allclose(exported, expected, atol=1e-12)
