"""PosRec against a plain, slow re-statement of the paper's equations, one session at a time."""

import math
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posrec.encodings.schemes import ENCODINGS
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.nn.batch import SessionBatch

ITEMS = 12
SMALL = PosRecConfig(d=8, heads=2, max_length=9)
sessions = st.lists(st.integers(1, ITEMS), min_size=1, max_size=9)


def make(**changes) -> PosRec:
    torch.manual_seed(3)
    return PosRec(ITEMS, replace(SMALL, **changes)).double().eval()


def slowly(model: PosRec, session: list[int]) -> Tensor:
    """h of one session: loops over nodes, dictionaries of edges, no packing, no masks."""
    config, d = model.config, model.config.d
    nodes = list(dict.fromkeys(session))
    weight: dict[tuple[int, int], float] = {}
    plain = nx.Graph()
    plain.add_nodes_from(nodes)
    for before, after in pairwise(session):
        weight[before, after] = weight.get((before, after), 0) + 1
        plain.add_edge(before, after)
    distance = dict(nx.all_pairs_shortest_path_length(plain))
    repeated = {item for item in nodes if session.count(item) > 1}
    embedding = {item: model.embedding.weight[item - 1] for item in nodes}

    w_in, w_out, w_gates = model.graph.from_node.weight.split([d, d, 3 * d])
    b_in, b_out, b_gates = model.graph.from_node.bias.split([d, d, 3 * d])
    updated = {}
    for node in nodes:
        incoming = {other: weight.get((other, node), 0.0) for other in nodes}
        outgoing = {other: weight.get((node, other), 0.0) for other in nodes}
        if config.anchors:
            for anchor in {session[0], *repeated}:
                incoming[anchor] += distance[node][anchor]
            for anchor in {session[-1], *repeated}:
                outgoing[anchor] += distance[node][anchor]
        if config.normalize:
            for weights in (incoming, outgoing):
                total = max(sum(weights.values()), 1)
                weights.update({other: value / total for other, value in weights.items()})
        message = torch.cat([
            sum(incoming[other] * (w_in @ embedding[other] + b_in) for other in nodes),
            sum(outgoing[other] * (w_out @ embedding[other] + b_out) for other in nodes),
        ])  # fmt: skip
        from_message = model.graph.from_message.weight @ message + model.graph.from_message.bias
        from_node = w_gates @ embedding[node] + b_gates
        reset, update = ((from_message + from_node)[part * d : (part + 1) * d].sigmoid() for part in (0, 1))
        new = (from_message[2 * d :] + reset * from_node[2 * d :]).tanh()
        updated[node] = (1 - update) * new + update * embedding[node]

    forward = torch.tensor([[session.index(node) for node in nodes]])
    backward = torch.tensor([[session[::-1].index(node) for node in nodes]])
    length = torch.tensor([len(session)])
    hidden = torch.stack([updated[node] for node in nodes]) + model.encoding(forward, backward, length)[0]
    bias = None
    if config.encoding == "rpe":
        bias = model.encoding.attention_bias(forward, backward, length)[0]
    for layer in model.transformer:
        hidden = transformer_slowly(layer, hidden, config.heads, bias)
    last, first = nodes.index(session[-1]), nodes.index(session[0])
    return config.lambda0 * updated[session[-1]] + config.lambda1 * hidden[last] + config.lambda2 * hidden[first]


def transformer_slowly(layer, x: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    d = x.shape[1]
    queries, keys, values = (x @ w.T + b for w, b in zip(
        layer.queries_keys_values.weight.split(d), layer.queries_keys_values.bias.split(d), strict=True))  # fmt: skip
    width, parts = d // heads, []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        logits = queries[:, columns] @ keys[:, columns].T / math.sqrt(width)
        if bias is not None:
            logits = logits + bias[head]
        parts.append(logits.softmax(1) @ values[:, columns])
    x = layer.after_attention(x + layer.out(torch.cat(parts, 1)))
    return layer.after_feed_forward(x + layer.narrow(layer.widen(x).relu()))


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_every_encoding_agrees_with_the_equations(encoding: str) -> None:
    model = make(encoding=encoding)
    batch = [[1, 2, 3], [4], [5, 5, 5], [1, 2, 1, 3, 2, 9, 1], [7, 8, 7, 8]]
    fast = model.session_vectors(SessionBatch.of(batch))
    assert torch.allclose(fast, torch.stack([slowly(model, session) for session in batch]), atol=1e-12)


@settings(max_examples=60)
@given(st.lists(sessions, min_size=1, max_size=5), st.booleans(), st.booleans(), st.sampled_from([0.25, 1.0, 2.0]))
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], anchors: bool, normalize: bool, lambda2: float
) -> None:
    model = make(anchors=anchors, normalize=normalize, lambda2=lambda2, layers=2)
    fast = model.session_vectors(SessionBatch.of(batch))
    close = 1e-6 if normalize else 1e-11  # graphs are float32: whole numbers are exact there, thirds are not
    assert torch.allclose(fast, torch.stack([slowly(model, session) for session in batch]), atol=close)


def test_capacity_changes_no_gradient() -> None:
    model, made = make(), SessionBatch.of([[1, 2, 1], [3], [4, 5]])
    gradients = []
    for batch in (made, replace(made, capacity=11)):
        model.zero_grad()
        model.scores(batch).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for exact, roomy in zip(*gradients, strict=True):
        assert torch.allclose(exact, roomy, atol=1e-12)


@pytest.mark.parametrize("session", [[1], [2] * 200, [1 + i % ITEMS for i in range(200)]], ids=["one", "same", "long"])
def test_extreme_sessions_score_finitely(session: list[int]) -> None:
    assert make().scores(SessionBatch.of([session])).isfinite().all()


def test_items_it_does_not_know_look_alike_and_like_nothing() -> None:
    model = make()
    scores = model.scores(SessionBatch.of([[1, 50, 2], [1, 60, 2], [1, 3, 2]]))
    assert torch.allclose(scores[0], scores[1], atol=1e-6)
    assert not torch.allclose(scores[0], scores[2])
    model.session_vectors(SessionBatch.of([[50, 60]])).sum().backward()
    assert model.embedding.weight.grad is not None
    assert model.embedding.weight.grad.abs().sum() == 0


def test_the_table_is_looked_up_and_multiplied_with_one_gradient() -> None:
    """`vectors` adds up what `session_vectors` and `item_vectors` would each give."""
    model, batch = make(), SessionBatch.of([[1, 2, 1], [3, 9]])
    gradients = []
    for both in (True, False):
        model.zero_grad()
        sessions, table = model.vectors(batch) if both else (model.session_vectors(batch), model.item_vectors())
        (sessions @ table[:ITEMS].T).square().sum().backward()
        gradients.append(model.embedding.weight.grad.clone())
    assert torch.allclose(*gradients, atol=1e-12)


def test_repeated_item_takes_its_earliest_and_latest_position() -> None:
    """In a b a, a stands 0 from the first click and 0 from the last: the halves of rows 0 and 0 of LDPE's table."""
    model = make(encoding="ldpe", anchors=False)
    seen = []
    model.encoding.register_forward_hook(lambda module, inputs, output: seen.append(inputs))
    model.session_vectors(SessionBatch.of([[4, 6, 4]]))
    forward, backward, length = seen[0]
    assert forward[0, 0] == 0
    assert backward[0, 0] == 0
    assert (forward[0, 1], backward[0, 1], length[0]) == (1, 1, 3)


def test_heads_must_divide_d() -> None:
    with pytest.raises(ValueError, match="heads=3 must divide d=8"):
        make(heads=3)


@given(st.lists(sessions, min_size=1, max_size=4), st.sampled_from(["ldpe", "rpe"]))
def test_with_distances_by_doubling_it_is_the_same(batch: list[list[int]], encoding: str) -> None:
    """What is exported."""
    model, plain = make(encoding=encoding, layers=2), SessionBatch.of(batch)
    exported = replace(plain, longest=9)
    assert torch.allclose(model.session_vectors(exported), model.session_vectors(plain), atol=1e-12)
