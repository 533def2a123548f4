"""Explanations of log probabilities: the parts that the session's own items add, and where a repeat would point."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from posrec.cli.explanations import clicks_table, drawn, parts_table
from posrec.data.vocabulary import Vocabulary
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.nn.batch import SessionBatch
from posrec.nn.first_read import first_read
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.fixtures import run_of
from tests.helpers import command

ITEMS = 12
IDS = [f"i{number}" for number in range(1, ITEMS + 1)]
sessions = st.lists(st.sampled_from(IDS), min_size=1, max_size=12)
PARTS = ["last item", "latest intention", "initial intention", "trend", "clicked before", "normalisation"]


def plus_of(**changes) -> Recommender:
    torch.manual_seed(3)
    model = PosRecPlus(ITEMS, replace(PosRecPlusConfig(d=8, heads=2, max_length=9), **changes)).eval()
    return Recommender(run_of(model, IDS, "posrec-plus"), "cpu")


@given(sessions, st.sampled_from(IDS), st.booleans(), st.sampled_from([0, 1, 2]))
def test_the_parts_add_up_to_the_score(session, item, cosine, layers) -> None:
    rec = plus_of(cosine=cosine, layers=layers)
    found = rec.explain(session, item)
    assert list(found.parts) == PARTS
    assert sum(found.parts.values()) == pytest.approx(found.score, abs=1e-4)
    assert (found.parts["clicked before"] == 0) == (item not in session[first_read(len(session), 9, 4) :])
    assert found.probability == pytest.approx(math.exp(found.score))
    shown = {one.item: one.score for one in rec.recommend(session, k=ITEMS)}
    assert found.score == pytest.approx(shown[item], abs=1e-5)


@given(sessions)
def test_the_probabilities_of_all_items_add_up_to_one(session) -> None:
    rec = plus_of()
    found = rec.explain(session, IDS)
    assert sum(one.probability or 0 for one in found) == pytest.approx(1, abs=1e-5)
    assert len({one.parts["normalisation"] for one in found}) == 1
    assert len({one.repeat_chance for one in found}) == 1


@given(sessions, st.sampled_from(IDS))
def test_each_part_is_what_the_definition_says(session, item) -> None:
    """p = g r + (1 - g) e, worked out from the model's vectors and the numbers of the repeat part."""
    rec = plus_of()
    read = session[first_read(len(session), 9, 4) :]
    numbers, number = [IDS.index(one) + 1 for one in read], IDS.index(item) + 1
    with torch.no_grad():
        vectors, table, own = rec.model.encode(SessionBatch.of([numbers]))
    z = (table[:ITEMS] @ vectors[0]).tolist()
    of_item = {one: slot for slot, one in enumerate(own.items[0].tolist()) if one}
    delta = {one: own.raised[0, slot].item() for one, slot in of_item.items()}
    total = sum(math.exp(z[one - 1] + delta.get(one, 0)) for one in range(1, ITEMS + 1))
    repeats = {one: math.exp(own.repeat[0, slot].item()) for one, slot in of_item.items()}
    g = sum(repeats.values())
    p = (1 - g) * math.exp(z[number - 1] + delta.get(number, 0)) / total + repeats.get(number, 0)
    why = rec.explain(session, item)
    assert why.probability == pytest.approx(p, rel=1e-4)
    assert why.repeat_chance == pytest.approx(g, abs=1e-5)
    assert sum(why.parts[name] for name in PARTS[:4]) == pytest.approx(z[number - 1], abs=1e-4)
    assert why.parts["normalisation"] == pytest.approx(math.log((1 - g) / total), abs=1e-4)
    for place, (click, one) in enumerate(zip(why.clicks, numbers, strict=True)):
        share = 0 if one in numbers[place + 1 :] else repeats[one] / g  # an item's share stands at its latest click
        assert click.attention["clicked before"] == pytest.approx(share, abs=1e-5)


@given(sessions)
def test_attention_and_shares_sum_to_one_over_the_clicks(session) -> None:
    found = plus_of(layers=2).explain(session, "i1")
    for name in ("latest intention", "initial intention", "clicked before"):
        assert sum(click.attention[name] for click in found.clicks) == pytest.approx(1, abs=1e-5)


def test_attention_is_the_softmax_of_the_layer() -> None:
    """One head, one layer, no positions: softmax of the products of queries and keys, plus s for clicks on the item of
    the click that asks; worked out for the session a b a."""
    rec = plus_of(heads=1, encoding="none", message=False)
    model, layer = rec.model, rec.model.reader.transformer[0]
    layer.same_item.data.fill_(0.7)
    seen = []
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 0]))
    model.session_vectors(SessionBatch.of([[1, 2, 1]]))
    hidden, first = seen  # [3, d]: a, b, a; and the first click, which asks at the last
    queries, keys, _ = layer.queries_keys_values(torch.cat([hidden, first])).chunk(3, dim=1)
    logits = queries @ keys[:3].T / 8**0.5 + torch.tensor([0.7, 0, 0.7])
    wanted = logits.softmax(1)
    found = rec.explain(["i1", "i2", "i1"], "i5").clicks
    assert [click.attention["latest intention"] for click in found] == pytest.approx(wanted[2].tolist(), abs=1e-6)
    assert [click.attention["initial intention"] for click in found] == pytest.approx(wanted[3].tolist(), abs=1e-6)


# How it is drawn.


def lines(table) -> list[str]:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_tables_fit_into_eighty_columns(trained_plus: Path) -> None:
    """Long names are cut, so that all values and headings are whole."""
    run = load_run(trained_plus)
    ids = [f"{one}-with-a-name-that-is-too-long" for one in run.vocabulary.ids]
    rec = Recommender(replace(run, vocabulary=Vocabulary(ids)), "cpu")
    found = rec.explain([ids[1], ids[2], ids[2], ids[3]], [ids[4], ids[20]])
    parts, clicks = lines(parts_table(found)), lines(clicks_table(found[0]))
    heading = " ".join(parts[:2]).split()
    words = ["clicked", "item", "chance", "score", "last", "item", "latest", "initial", "trend", "before", "norm."]
    assert sorted(heading) == sorted(words)
    for line, one in zip(parts[2:], found, strict=True):
        assert line.split()[1] == f"{one.item[:11]}…"
        assert line.split()[2:4] == [f"{one.probability:.1%}", f"{one.score:.3f}"]
        assert line.split()[4:] == [f"{value:+.3f}" for value in one.parts.values()]
    assert [line.split()[1] for line in clicks[2:]] == [f"{ids[place][:17]}…" for place in (1, 2, 2, 3)]
    assert "".join(parts[:2] + clicks[:2]).count("…") == 0


def test_the_chance_of_a_repeat_is_printed(trained_plus: Path) -> None:
    found = Recommender.load(trained_plus).explain(["i1", "i2"], ["i1"])
    last = [str(one) for one in drawn(found)][-1]
    assert last == f"The chance that the next click repeats an item of the session is {found[0].repeat_chance:.0%}."


def test_recommend_explains(trained_plus: Path) -> None:
    done = command("recommend", trained_plus, "i1", "i2", "i1", "-k", 3, "--explain")
    assert done.code == 0, done.err
    for words in ("norm.", "trend", "chance", "The chance that the next click repeats"):
        assert words in done.out
    printed = json.loads(command("recommend", trained_plus, "i1", "i2", "-k", 3, "--explain", "--json").out)
    for one in printed["explanations"]:
        assert sum(one["parts"].values()) == pytest.approx(one["score"], abs=1e-4)
        assert one["probability"] == pytest.approx(math.exp(one["score"]))
        assert 0 < one["repeat_chance"] < 1


def test_other_models_have_no_probability(trained: Path) -> None:
    why = Recommender.load(trained).explain(["i1", "i2"], "i3")
    assert (why.probability, why.repeat_chance, list(why.parts)) == (None, None, PARTS[:3])
