"""Explanations: parts that add up, effects of clicks, attention, and the tables that show them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from posrec.cli.explanations import clicks_table, parts_table, recommendations_table
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.nn.first_read import first_read
from posrec.progress import TerminalConsole
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import ClickEffect, Recommendations
from posrec.runs.run import load_run
from tests.fixtures import run_of
from tests.helpers import command, items_of, own_process, refused

ITEMS = 12
IDS = [f"i{number}" for number in range(1, ITEMS + 1)]
sessions = st.lists(st.sampled_from(IDS), min_size=1, max_size=12)
PARTS = [
    "last item",
    "latest intention",
    "initial intention",
    "trend",
    "clicked before",
    "normalisation",
]


def recommender_of(model: Any = "posrec", **changes: Any) -> Recommender:
    torch.manual_seed(3)
    settings = MODELS[model].config(**{"d": 8, "heads": 2, "max_length": 9, **changes})
    built = MODELS[model].build(ITEMS, settings).eval()
    return Recommender(run_of(built, IDS, model), "cpu")


def attention_to(clicks: tuple[ClickEffect, ...], part: str) -> list[float]:
    return [click.attention[part] for click in clicks]


@given(
    sessions,
    st.sampled_from(IDS),
    st.sampled_from([(1.0, 1.0, 1.0), (0.5, 2.0, 0.0)]),
    st.booleans(),
    st.sampled_from([0, 1, 2]),
)
def test_the_parts_add_up_to_the_score(
    session: list[str], item: str, lambdas: Any, anchors: bool, layers: int
) -> None:
    weights = {f"lambda{part}": weight for part, weight in enumerate(lambdas)}
    rec = recommender_of(anchors=anchors, layers=layers, **weights)
    why = rec.explain(session, item)
    assert list(why.parts) == PARTS[:3]
    assert (why.probability, why.repeat_chance) == (None, None)
    assert sum(why.parts.values()) == pytest.approx(why.score, abs=1e-5)
    assert why.parts["initial intention"] == 0 or lambdas[2] > 0
    answer = rec.recommend(session, k=ITEMS)
    assert answer[why.rank - 1].item == item
    assert answer[why.rank - 1].score == pytest.approx(why.score, abs=1e-6)
    for name in PARTS[1:3] if layers else ():
        # Clicks on an item share its node.
        by_item = {click.item: click.attention[name] for click in why.clicks}
        assert sum(by_item.values()) == pytest.approx(1, abs=1e-5)


@given(sessions, st.sampled_from(IDS))
def test_each_part_is_the_score_with_one_lambda_alone(
    session: list[str], item: str
) -> None:
    """A second model has the same weights and all other lambdas 0."""
    lambdas = {"lambda0": 0.5, "lambda1": 2.0, "lambda2": 3.0}
    why = recommender_of(**lambdas).explain(session, item)
    for name, value in zip(lambdas, why.parts.values(), strict=True):
        alone = {**dict.fromkeys(lambdas, 0.0), name: lambdas[name]}
        score = recommender_of(**alone).explain(session, item).score
        assert value == pytest.approx(score, abs=1e-5)


@given(sessions, st.sampled_from(IDS))
def test_the_effect_is_the_difference_to_the_session_without_the_click(
    session: list[str], item: str
) -> None:
    rec = recommender_of()
    why = rec.explain(session, item)
    assert [click.item for click in why.clicks] == session[-9:]
    assert why.unread == max(0, len(session) - 9)
    if len(session) == 1:
        assert (why.clicks[0].effect, why.clicks[0].rank_without) == (None, None)
        return
    for position, click in enumerate(why.clicks, start=why.unread):
        without = rec.explain(session[:position] + session[position + 1 :], item)
        assert click.effect == pytest.approx(why.score - without.score, abs=1e-5)
        assert click.rank_without == without.rank


def test_attention_is_the_softmax_of_the_layer() -> None:
    """One head, one layer: softmax of the products of queries and keys, worked out for the session
    a b a c."""
    rec = recommender_of(heads=1)
    layer = rec.model.transformer[0]
    inputs = []
    layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    rec.model.session_vectors(SessionBatch.of([[1, 2, 1, 3]]))
    (hidden,) = inputs  # [3, d]: a, b, c
    queries, keys, _ = layer.queries_keys_values(hidden).chunk(3, dim=1)
    weights = (queries @ keys.T / 8**0.5).softmax(1)
    by_click = weights[:, [0, 1, 0, 2]].tolist()
    clicks = rec.explain(["i1", "i2", "i1", "i3"], "i5").clicks
    latest = attention_to(clicks, "latest intention")
    assert latest == pytest.approx(by_click[2], abs=1e-6)
    initial = attention_to(clicks, "initial intention")
    assert initial == pytest.approx(by_click[0], abs=1e-6)


def test_models_without_parts_are_explained_by_clicks(shop: Recommender) -> None:
    # a b gives c 1 + 2 * 5; without a 2 * 5, without b 2 * 1.
    why = shop.explain(["x", "a", "b"], "c")
    assert (why.score, why.rank, why.parts, why.title) == (11.0, 1, {}, "Clogs")
    assert why.clicks == (
        ClickEffect("a", "Anorak", 1.0, rank_without=1),
        ClickEffect("b", None, 9.0, rank_without=2),
    )
    assert why.unknown == ("x",)


def test_without_a_click_an_earlier_one_is_read(shop: Recommender) -> None:
    # d a b reads a b; without b it is d a: d's 0 and twice a's 1.
    why = shop.explain(["d", "a", "b"], "c")
    assert why.unread == 1
    assert [click.effect for click in why.clicks] == [11.0 - 10.0, 11.0 - 2.0]


def test_several_items_at_once(shop: Recommender) -> None:
    one_by_one = [shop.explain(["a", "b"], item) for item in ("c", "e")]
    assert shop.explain(["a", "b"], ["c", "e"]) == one_by_one


@pytest.mark.parametrize(
    ("session", "item", "message"),
    [
        (["a"], "f", "'f' is not known"),
        (["x"], "a", "nothing to explain"),
        ([], "a", "is empty"),
    ],
)
def test_unexplainable_requests_are_input_errors(
    shop: Recommender, session: list[str], item: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        shop.explain(session, item)


# Log probabilities: the parts that the session's own items add, and where a repeat would point.


@given(sessions, st.sampled_from(IDS), st.booleans())
def test_each_part_is_what_the_definition_says(
    session: list[str], item: str, cosine: bool
) -> None:
    """p = g r + (1 - g) e, worked out from the model's vectors and numbers of the repeat part."""
    rec = recommender_of("posrec-plus", cosine=cosine)
    read = session[first_read(len(session), 9, 4) :]
    numbers = [IDS.index(click) + 1 for click in read]
    number = IDS.index(item) + 1
    with torch.no_grad():
        vectors, table, own_items = rec.model.batch_vectors(SessionBatch.of([numbers]))
    z = (table[:ITEMS] @ vectors[0]).tolist()
    raised = list(z)
    repeats = dict.fromkeys(range(1, ITEMS + 1), 0.0)
    for slot, own_item in enumerate(own_items.items[0].tolist()):
        if own_item:
            raised[own_item - 1] += own_items.raised[0, slot].item()
            repeats[own_item] = math.exp(own_items.repeat[0, slot].item())
    total = sum(map(math.exp, raised))
    g = sum(repeats.values())
    p = (1 - g) * math.exp(raised[number - 1]) / total + repeats[number]
    why = rec.explain(session, item)
    assert list(why.parts) == PARTS
    assert sum(why.parts.values()) == pytest.approx(why.score, abs=1e-4)
    assert (why.parts["clicked before"] == 0) == (item not in read)
    assert why.probability == pytest.approx(p, rel=1e-4)
    assert math.exp(why.score) == pytest.approx(p, rel=1e-4)
    assert why.repeat_chance == pytest.approx(g, abs=1e-5)
    product = sum(why.parts[name] for name in PARTS[:4])
    assert product == pytest.approx(z[number - 1], abs=1e-4)
    normalisation = math.log((1 - g) / total)
    assert why.parts["normalisation"] == pytest.approx(normalisation, abs=1e-4)
    for position, clicked in enumerate(numbers):
        # An item's share is that of its latest click.
        is_latest = clicked not in numbers[position + 1 :]
        share = repeats[clicked] / g if is_latest else 0
        attention = why.clicks[position].attention["clicked before"]
        assert attention == pytest.approx(share, abs=1e-5)


def test_attention_of_posrec_plus_is_the_softmax_of_its_layer() -> None:
    """One head, one layer, no positions: softmax of the products of queries and keys, plus s for
    clicks on the item of the click that asks; worked out for the session a b a."""
    rec = recommender_of("posrec-plus", heads=1, encoding="none", message=False)
    layer = rec.model.reader.transformer[0]
    layer.same_item.data.fill_(0.7)
    inputs = []
    layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0][0]))
    rec.model.session_vectors(SessionBatch.of([[1, 2, 1]]))
    # [4, d]: a, b, a; and the first click, which asks at the last
    (hidden,) = inputs
    queries, keys, _ = layer.queries_keys_values(hidden).chunk(3, dim=1)
    logits = queries @ keys[:3].T / 8**0.5 + torch.tensor([0.7, 0, 0.7])
    weights = logits.softmax(1).tolist()
    clicks = rec.explain(["i1", "i2", "i1"], "i5").clicks
    latest = attention_to(clicks, "latest intention")
    assert latest == pytest.approx(weights[2], abs=1e-6)
    initial = attention_to(clicks, "initial intention")
    assert initial == pytest.approx(weights[3], abs=1e-6)


# How it is drawn.


def table_text(table: object) -> str:
    console = TerminalConsole(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_tables_of_log_probabilities_fit_into_eighty_columns(
    trained_plus: Path,
) -> None:
    """Long names are cut, so that all values and headings are whole."""
    run = load_run(trained_plus)
    ids = [f"{id}-with-a-name-that-is-too-long" for id in run.vocabulary.ids]
    rec = Recommender(replace(run, vocabulary=Vocabulary(ids)), "cpu")
    session = [ids[1], ids[2], ids[2], ids[3]]
    explanations = rec.explain(session, [ids[4], ids[20]])
    parts = table_text(parts_table(explanations)).splitlines()
    clicks = table_text(clicks_table(explanations[0])).splitlines()
    heading = " ".join(parts[:2]).split()
    words = "before chance clicked initial item item last latest norm. score trend"
    assert " ".join(sorted(heading)) == words
    for line, why in zip(parts[2:], explanations, strict=True):
        assert line.split()[1] == f"{why.item[:11]}…"
        assert line.split()[2:4] == [f"{why.probability:.1%}", f"{why.score:.3f}"]
        assert line.split()[4:] == [f"{value:+.3f}" for value in why.parts.values()]
    names = [line.split()[1] for line in clicks[2:]]
    assert names == [f"{item[:17]}…" for item in session]
    assert "".join(parts[:2] + clicks[:2]).count("…") == 0


def test_titles_are_not_rich_markup_and_an_answer_may_be_empty(
    shop: Recommender,
) -> None:
    assert "Espresso [new]" in table_text(recommendations_table(shop.recommend(["d"])))
    assert "score" in table_text(recommendations_table(Recommendations(())))


# Through the command.


def test_recommend_prints_a_table(trained: Path) -> None:
    done = command("recommend", trained, "i1", "i2", "x", "-k", 3)
    assert (done.code, f"posrec export {trained} adds it" in done.err) == (0, True)
    answer = Recommender.load(trained).recommend(["i1", "i2"], k=3)
    assert [line.split()[1] for line in done.out.splitlines()[1:4]] == items_of(answer)
    assert "does not know them: x." in done.out


def recommend_json(*words: object) -> Any:
    return json.loads(command("recommend", *words, "--json").out)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("trained", ["score is made of", "last item", "click did for", "█", "%"]),
        ("trained_plus", ["norm.", "trend", "chance", "next click repeats an item"]),
    ],
)
def test_recommend_explains_in_tables_and_as_json(
    request: pytest.FixtureRequest, run: str, words: list[str]
) -> None:
    folder = request.getfixturevalue(run)
    asked = (folder, "i1", "i2", "i1", "-k", 3, "--explain")
    done = command("recommend", *asked)
    assert done.code == 0, done.err
    for word in words:
        assert word in done.out
    printed = recommend_json(*asked)
    answer = Recommender.load(folder).recommend(["i1", "i2", "i1"], k=3)
    for name in ("items", "explanations"):
        assert [shown["item"] for shown in printed[name]] == items_of(answer)
    for why in printed["explanations"]:
        assert sum(why["parts"].values()) == pytest.approx(why["score"], abs=1e-4)


def test_only_what_is_known_is_explained(trained: Path) -> None:
    assert "explanations" not in recommend_json(trained, "i1")
    popular = recommend_json(trained, "x", "--explain")
    assert (popular["popular"], popular["unknown"]) == (True, ["x"])
    assert "explanations" not in popular


def test_recommend_about_an_item(trained: Path) -> None:
    printed = recommend_json(trained, "i1", "i2", "-k", 1, "--about", "i25")
    assert [why["item"] for why in printed["explanations"]] == ["i25"]
    refused("recommend", trained, "i1", "--about", "x")


def test_a_counting_run_is_explained_without_parts(counted: Path) -> None:
    done = command("recommend", counted, "i1", "i2", "--explain", "-k", 2)
    assert done.code == 0
    assert "What the score is made of" not in done.out
    assert "What each click did" in done.out


@pytest.mark.process
def test_recommending_imports_no_training_code(trained: Path) -> None:
    """Nor torch's compiler and its sympy, which take two seconds: a server would start that much
    later."""
    slow = ("posrec.training", "polars", "onnx", "torch._dynamo", "sympy")
    code = (
        "import sys, posrec\n"
        "posrec.Recommender.load(sys.argv[1]).explain(['i1'], 'i2')\n"
        f"print([name for name in sys.modules if name.startswith({slow})])"
    )
    done = own_process(trained, code=code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
