"""posrec-plus against a plain, slow re-statement of its equations, one session at a time."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posrec.encodings.schemes import ENCODINGS
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.models.repeat_part import of_owner
from posrec.nn.batch import SessionBatch
from posrec.nn.packing import pack
from posrec.testing import random_sessions
from tests.models.test_posrec import transformer_slowly

ITEMS = 12
SMALL = PosRecPlusConfig(d=8, heads=2, max_length=9, repeat_width=5, neighbours=3)
sessions = st.lists(st.integers(1, ITEMS), min_size=1, max_size=9)


def make(**changes) -> PosRecPlus:
    torch.manual_seed(3)
    model = PosRecPlus(ITEMS, replace(SMALL, **changes))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    log = [[1 + (item - 1) % ITEMS for item in session] for session in random_sessions()]
    clicks = torch.tensor([item for session in log for item in session])
    model.count(clicks, torch.tensor([0, *map(len, log)]).cumsum(0))
    return model.double().eval().requires_grad_(False)


def smoothed_slowly(model: PosRecPlus) -> Tensor:
    table, graph = model.embedding.weight, model.co_clicks
    rows = []
    for row, vector in enumerate(table):
        for place in range(int(graph.offsets[row]), int(graph.offsets[row + 1])) if len(graph.values) else ():
            vector = vector + model.config.smoothing * graph.values[place] * table[graph.columns[place]]
        rows.append(vector)
    return torch.stack(rows)


def slowly(model: PosRecPlus, session: list[int]) -> Tensor:
    """log p of all items: loops over nodes, no packing, no masks."""
    config = model.config
    nodes = list(dict.fromkeys(session))
    vectors = smoothed_slowly(model)
    x = {item: vectors[item - 1] for item in nodes}
    updated = graph_slowly(model, session, x) if config.graph else x
    forward = torch.tensor([[session.index(node) for node in nodes]])
    backward = torch.tensor([[session[::-1].index(node) for node in nodes]])
    length = torch.tensor([len(session)])
    hidden = torch.stack([updated[node] for node in nodes]) + model.encoding(forward, backward, length)[0]
    bias = model.encoding.attention_bias(forward, backward, length)[0] if config.encoding == "rpe" else None
    for layer in model.transformer:
        hidden = transformer_slowly(layer, hidden, config.heads, bias)
    h = updated[session[-1]] + hidden[nodes.index(session[-1])] + hidden[0]

    z = vectors[:ITEMS] @ h
    if config.cosine:
        z = config.scale * z / h.norm() / vectors[:ITEMS].norm(dim=1)
    if model.trends is not None:
        z = z + model.trends.by_part()[:ITEMS, -1]
    if model.repeat is None:
        return z
    part, rho, delta = model.repeat, [], []
    for place, node in enumerate(nodes):
        u = part.of_item(x[node]) + part.of_state(hidden[place]) + part.of_session(h)
        u = u + part.forward_position[forward[0, place]] + part.backward_position[backward[0, place]]
        u = u + part.clicks[min(session.count(node), 5)]
        out = part.out(u.relu())
        rho.append(out[0])
        delta.append(out[1].clamp(-10, 10))
    r = torch.stack(rho).softmax(0)
    features = torch.tensor([len(session), len(nodes)]).log1p() / 3
    again = torch.tensor([float(session.count(session[-1]) > 1)])
    strength = torch.stack(rho).logsumexp(0)[None] / 5
    g = part.gate(torch.cat([h, features.double(), again.double(), strength])).softmax(0)
    raised = z.clone()
    for node, amount in zip(nodes, delta, strict=True):
        raised[node - 1] = raised[node - 1] + amount
    p = g[1] * raised.softmax(0)
    for node, chance in zip(nodes, r, strict=True):
        p[node - 1] = p[node - 1] + g[0] * chance
    return p.log()


def graph_slowly(model: PosRecPlus, session: list[int], x: dict[int, Tensor]) -> dict[int, Tensor]:
    d = model.config.d
    assert model.graph is not None
    w_in, w_out, w_gates = model.graph.from_node.weight.split([d, d, 3 * d])
    b_in, b_out, b_gates = model.graph.from_node.bias.split([d, d, 3 * d])
    updated = {}
    for node in x:
        received = []
        steps = list(pairwise(session))
        incoming, outgoing = [a for a, b in steps if b == node], [b for a, b in steps if a == node]
        for others, weight, bias in ((incoming, w_in, b_in), (outgoing, w_out, b_out)):
            total = sum((weight @ x[other] + bias for other in others), torch.zeros(d, dtype=torch.double))
            received.append(total / max(len(others), 1))
        from_message = model.graph.from_message.weight @ torch.cat(received) + model.graph.from_message.bias
        from_node = w_gates @ x[node] + b_gates
        reset, update = ((from_message + from_node)[part * d : (part + 1) * d].sigmoid() for part in (0, 1))
        new = (from_message[2 * d :] + reset * from_node[2 * d :]).tanh()
        updated[node] = (1 - update) * new + update * x[node]
    return updated


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_every_encoding_agrees_with_the_equations(encoding: str) -> None:
    model = make(encoding=encoding)
    batch = [[1, 2, 3], [4], [5, 5, 5], [1, 2, 1, 3, 2, 9, 1], [7, 8, 7, 8]]
    expected = torch.stack([slowly(model, session) for session in batch])
    assert torch.allclose(model.scores(SessionBatch.of(batch)), expected, atol=1e-5)


PARTS = ("graph", "cosine", "trend", "repeat")


@settings(max_examples=40)
@given(st.lists(sessions, min_size=1, max_size=5), st.tuples(*[st.booleans()] * 4), st.sampled_from([0.0, 0.5]))
def test_any_batch_agrees_with_the_equations(batch: list[list[int]], on: tuple[bool, ...], smoothing: float) -> None:
    """With each part on or off; graphs are float32, where thirds are rounded."""
    model = make(smoothing=smoothing, layers=2, **dict(zip(PARTS, on, strict=True)))
    expected = torch.stack([slowly(model, session) for session in batch])
    assert torch.allclose(model.scores(SessionBatch.of(batch)), expected, atol=1e-4)


def test_the_parts_of_the_session_vector_add_up_to_it() -> None:
    for changes in ({}, {"trend": False}, {"cosine": False}):
        model, batch = make(**changes), SessionBatch.of([[1, 2, 1], [3], [4, 5]])
        parts = model.vector_parts(batch)
        assert ("trend" in parts) == model.config.trend
        assert torch.allclose(torch.stack(list(parts.values())).sum(0), model.session_vectors(batch))


def test_saved_weights_need_no_counts() -> None:
    """A model with the saved weights scores the same, though it has seen no training session."""
    model, batch = make(), SessionBatch.of([[1, 2, 1], [3], [12, 5, 7, 5]])
    opened = PosRecPlus(ITEMS, model.config).double().eval()
    opened.load_state_dict(model.saved_weights())
    assert torch.allclose(opened.embedding.weight, smoothed_slowly(model))
    assert torch.allclose(opened.scores(batch), model.scores(batch))


def test_dropout_acts_in_training_alone() -> None:
    model, batch = make(item_dropout=0.5, repeat_dropout=0.5, dropout=0.0), SessionBatch.of([[1, 2, 3, 2]])
    calm = model.scores(batch)
    assert torch.equal(model.scores(batch), calm)
    model.train()
    torch.manual_seed(0)
    assert not torch.allclose(model.scores(batch), calm)


def test_what_rows_read_of_their_session_has_a_gradient_that_is_summed_in_order() -> None:
    """On a CPU several threads add up the gradient of x[index] in any order, and that of index_select in one."""
    packing = pack(torch.tensor([[True, True], [True, False]]))
    x = torch.tensor([[1.0], [2.0]], requires_grad=True)
    found = of_owner(x, packing)
    assert found.tolist() == [[1.0], [1.0], [2.0]]
    assert type(found.grad_fn).__name__ == "IndexSelectBackward0"


def test_an_unknown_item_is_never_an_own_item() -> None:
    own = make().encode(SessionBatch.of([[1, ITEMS + 3, 2], [ITEMS + 1]])).own
    assert own is not None
    assert sorted(own.items[0].tolist()) == [0, 1, 2]
    assert own.items[1].tolist() == [0, 0, 0]
    assert float(own.explore[1]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("setting", ["neighbours", "window"])
def test_impossible_settings_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, not 0"):
        PosRecPlus(ITEMS, replace(SMALL, **{setting: 0}))
