"""posrec-plus against a plain, slow re-statement of its equations; and that one pass reads every
prefix as if alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from posrec.encodings.schemes import ENCODINGS
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig, RepeatPart
from posrec.nn.batch import SessionBatch
from posrec.nn.first_read import first_read
from posrec.nn.packing import pack_many
from posrec.testing import random_sessions
from tests.models import checks
from tests.models.checks import ITEMS, sessions

SMALL = PosRecPlusConfig(d=8, heads=2, max_length=9, repeat_width=5, neighbours=3)
SPLIT = [name for name in ENCODINGS if not name.startswith("2d")]


def make(**changes: Any) -> PosRecPlus:
    torch.manual_seed(3)
    model = PosRecPlus(ITEMS, replace(SMALL, **changes))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    log = random_sessions()
    clicks = torch.tensor([item for session in log for item in session])
    offsets = torch.tensor([0, *map(len, log)]).cumsum(0)
    model.count(1 + (clicks - 1) % ITEMS, offsets)
    return model.double().eval().requires_grad_(False)


def smoothed_slowly(model: PosRecPlus) -> Tensor:
    table = model.embedding.weight
    graph = model.co_clicks.edges
    if not len(graph.values):
        return table
    smoothed = table.clone()
    for row in range(len(table)):
        for entry in range(int(graph.offsets[row]), int(graph.offsets[row + 1])):
            weight = model.config.smoothing * graph.values[entry]
            smoothed[row] += weight * table[graph.columns[entry]]
    return smoothed


def encoded_slowly(model: PosRecPlus, last: int) -> Tensor:
    """The positional encoding itself, of a session that ends at click `last`: [last + 1, d]."""
    position = torch.arange(last + 1)[None]
    return model.encoding(position, last - position, torch.tensor([last + 1]))[0]


def attended_slowly(
    layer: Any,
    asking: Tensor,
    item: int,
    read: list[Tensor],
    items: list[int],
    bias: list[Tensor],
) -> Tensor:
    """x1 of one asking vector, head by head; `read` are the clicks with their whole positional
    encoding."""
    d = len(asking)
    heads = layer.heads
    to_query, to_key, to_value = layer.queries_keys_values.weight.split(d)
    of_query, of_key, of_value = layer.queries_keys_values.bias.split(d)
    query = to_query @ asking + of_query
    width = d // heads
    attended = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        logits = []
        for y, read_item, near in zip(read, items, bias, strict=True):
            key = (to_key @ y + of_key)[columns]
            same = layer.same_item[head] * (read_item == item)
            logits.append(query[columns] @ key / width**0.5 + same + near[head])
        values = [(to_value @ y + of_value)[columns] for y in read]
        attended.append(torch.stack(logits).softmax(0) @ torch.stack(values))
    return layer.after_attention(asking + layer.out(torch.cat(attended)))


def states_slowly(
    model: PosRecPlus, session: list[int], x: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """x' and H of every click, and G at the last; one layer, which reads each click with its
    encoding in the prefix."""
    reader = model.reader
    last = len(session) - 1
    updated = []
    for j, vector in enumerate(x):
        if reader.message is None:
            updated.append(vector)
            continue
        before = x[j - 1] if j else torch.zeros_like(vector)
        of_message = reader.message.of_message(before)
        of_click = reader.message.of_click(vector)
        updated.append(checks.gru_step(of_message, of_click, vector))
    counts = [min(session[: j + 1].count(item), 5) for j, item in enumerate(session)]

    def read_at(i: int) -> list[Tensor]:
        encoded = encoded_slowly(model, i)
        return [
            updated[j] + reader.clicks[counts[j]] + encoded[j] for j in range(i + 1)
        ]

    def bias_at(i: int) -> list[Tensor]:
        if model.config.encoding != "rpe":
            return [torch.zeros(model.config.heads)] * (i + 1)
        position = torch.arange(i + 1)[None]
        positions = (position, i - position, torch.tensor([i + 1]))
        bias = model.encoding.attention_bias(*positions)[0]
        return [bias[:, i, j] for j in range(i + 1)]

    (layer,) = reader.transformer
    hidden = []
    for i, item in enumerate(session):
        read = read_at(i)
        asked = attended_slowly(
            layer, read[-1], item, read, session[: i + 1], bias_at(i)
        )
        inner = layer.narrow(layer.widen(asked).relu())
        hidden.append(layer.after_feed_forward(asked + inner))
    read = read_at(last)
    initial = attended_slowly(layer, read[0], session[0], read, session, bias_at(last))
    return updated, hidden, initial


def slowly(model: PosRecPlus, session: list[int]) -> Tensor:
    """log p of all items: loops over clicks, no packing, no masks, no causal pass."""
    config = model.config
    vectors = smoothed_slowly(model)
    x = [vectors[item - 1] for item in session]
    updated, hidden, initial = states_slowly(model, session, x)
    h = updated[-1] + hidden[-1]
    if model.reader.gate is not None:
        h = h + model.reader.gate(hidden[-1]).sigmoid() * initial
    z = vectors[:ITEMS] @ h
    if config.cosine:
        z = config.scale * z / h.norm() / vectors[:ITEMS].norm(dim=1)
    if model.trends is not None:
        z = z + model.trends.by_period()[:ITEMS, -1]
    if model.repeat is None:
        return z
    return with_repeats_slowly(model.repeat, session, z, x, hidden, h)


def with_repeats_slowly(
    part: RepeatPart,
    session: list[int],
    z: Tensor,
    x: list[Tensor],
    hidden: list[Tensor],
    h: Tensor,
) -> Tensor:
    """log p of all items, from their scores z."""
    items = list(dict.fromkeys(session))
    rho = []
    raised = z.clone()
    for item in items:
        backward = session[::-1].index(item)
        u = part.of_item(x[-1 - backward]) + part.of_state(hidden[-1 - backward])
        u = u + part.of_session(h) + part.forward_position[session.index(item)]
        u = u + part.backward_position[backward]
        out = part.out((u + part.clicks[min(session.count(item), 5)]).relu())
        rho.append(out[0])
        raised[item - 1] += out[1].clamp(-10, 10)
    r = torch.stack(rho).softmax(0)
    strength = torch.stack(rho).logsumexp(0)[None] / 5
    counts = torch.tensor([len(session), len(items)]).log1p().double() / 3
    again = torch.tensor([float(session.count(session[-1]) > 1)]).double()
    g = part.gate(torch.cat([h, counts, again, strength])).softmax(0)
    p = g[1] * raised.softmax(0)
    for item, chance in zip(items, r, strict=True):
        p[item - 1] += g[0] * chance
    return p.log()


@pytest.mark.parametrize("encoding", SPLIT)
def test_every_encoding_agrees_with_the_equations(encoding: str) -> None:
    """With one layer, the two parts of an encoding are the encoding itself in every prefix."""
    model = make(encoding=encoding)
    batch = [[1, 2, 3], [4], [5, 5, 5], [1, 2, 1, 3, 2, 9, 1], [7, 8, 7, 8]]
    expected = torch.stack([slowly(model, session) for session in batch])
    assert torch.allclose(model.scores(SessionBatch.of(batch)), expected, atol=1e-5)


@pytest.mark.parametrize("encoding", ["2dspe", "2dlpe"])
def test_an_encoding_that_reads_the_length_is_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match=f"encoding={encoding}.*--model posrec"):
        make(encoding=encoding)


SWITCHES = ("message", "initial", "cosine", "trend", "repeat")


@settings(max_examples=40)
@given(
    st.lists(sessions, min_size=1, max_size=5),
    st.tuples(*[st.booleans()] * 5),
    st.sampled_from([0.0, 0.5]),
)
def test_any_batch_agrees_with_the_equations(
    batch: list[list[int]], on: tuple[bool, ...], smoothing: float
) -> None:
    """With each part on or off; the co-click graph is float32, where thirds are rounded."""
    model = make(smoothing=smoothing, **dict(zip(SWITCHES, on, strict=True)))
    expected = torch.stack([slowly(model, session) for session in batch])
    assert torch.allclose(model.scores(SessionBatch.of(batch)), expected, atol=1e-4)


@settings(max_examples=40)
@given(
    st.lists(sessions, min_size=1, max_size=5),
    st.sampled_from(SPLIT),
    st.integers(0, 3),
    st.integers(0, 4),
)
def test_one_pass_reads_every_prefix_as_if_alone(
    batch: list[list[int]], encoding: str, layers: int, padding: int
) -> None:
    """At any padding of the batch, and with unused rows after the last click."""
    model = make(encoding=encoding, layers=layers)
    plain = SessionBatch.of(batch)
    items = torch.nn.functional.pad(plain.items, (0, padding))
    padded = replace(plain, items=items, every_click=True)
    clicks = sum(map(len, batch))
    (packing,) = pack_many(padded.mask, clicks + padding, len(batch))
    roomy = replace(padded, packing=packing)
    prefixes = [
        session[:end] for session in batch for end in range(1, len(session) + 1)
    ]
    alone = model.scores(SessionBatch.of(prefixes))
    assert torch.allclose(model.scores(padded), alone)
    assert torch.allclose(model.scores(roomy)[:clicks], alone)


@given(st.lists(st.integers(1, ITEMS), min_size=10, max_size=30), st.integers(0, 29))
def test_a_session_longer_than_max_length_is_read_from_a_multiple_of_the_stride(
    session: list[int], end: int
) -> None:
    """So that the pass over such a window reads all of its prefixes as if alone, whatever comes
    after them."""
    model = make()
    end = 1 + end % len(session)
    first = first_read(end, 9, model.stride)
    assert model.stride == 4
    assert first % 4 == 0
    assert end <= 9 or 9 - 4 < end - first <= 9
    window = replace(SessionBatch.of([session[first : first + 9]]), every_click=True)
    alone = model.scores(SessionBatch.of([session[:end]], 9, model.stride))
    assert torch.allclose(model.scores(window)[end - first - 1], alone[0])


def test_a_loss_has_no_gradient_to_later_clicks() -> None:
    """The loss at click i changes the vectors of the items clicked up to i, and of no item that is
    clicked later."""
    model = make(smoothing=0.0, layers=2).requires_grad_(True)
    batch = replace(SessionBatch.of([[1, 2, 3, 1, 4, 5]]), every_click=True)
    for i, latest in enumerate([1, 2, 3, 3, 4, 5]):
        model.zero_grad()
        sessions, _, own_items = model.batch_vectors(batch)
        loss = sessions[i].sum() + own_items.repeat[i].sum() + own_items.explore[i]
        loss.backward()
        gradient = model.embedding.weight.grad.abs().sum(1)
        changed = gradient.nonzero()[:, 0] + 1
        assert changed.tolist() == list(range(1, latest + 1))


def test_the_parts_of_the_session_vector_add_up_to_it() -> None:
    for changes in ({}, {"trend": False}, {"cosine": False}, {"initial": False}):
        model = make(**changes)
        batch = SessionBatch.of([[1, 2, 1], [3], [4, 5]])
        parts = model.vector_parts(batch)
        assert ("trend" in parts) == model.config.trend
        total = torch.stack(list(parts.values())).sum(0)
        assert torch.allclose(total, model.session_vectors(batch))


def test_saved_weights_need_no_counts() -> None:
    """A model with the saved weights scores the same, though it has seen no training session."""
    model = make()
    batch = SessionBatch.of([[1, 2, 1], [3], [12, 5, 7, 5]])
    opened = PosRecPlus(ITEMS, model.config).double().eval()
    opened.load_state_dict(model.saved_weights())
    assert torch.allclose(opened.embedding.weight, smoothed_slowly(model))
    assert torch.allclose(opened.scores(batch), model.scores(batch))


def test_an_unknown_item_is_never_an_own_item() -> None:
    batch = SessionBatch.of([[1, ITEMS + 3, 2], [ITEMS + 1]])
    own_items = make().batch_vectors(batch).own_items
    assert sorted(own_items.items[0].tolist()) == [0, 1, 2]
    assert own_items.items[1].tolist() == [0, 0, 0]
    assert float(own_items.explore[1]) == pytest.approx(0.0, abs=1e-6)
