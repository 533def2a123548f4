"""Explanations: parts that add up, effects of clicks, attention, and the tables that show them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.cli.explanations import clicks_table, parts_table, recommendations_table
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.nn.first_read import first_read
from posrec.progress import TerminalConsole
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import Recommendations
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


def recommender_of(model="posrec", **changes) -> Recommender:
    torch.manual_seed(3)
    settings = MODELS[model].config(**{"d": 8, "heads": 2, "max_length": 9, **changes})
    return Recommender(
        run_of(MODELS[model].build(ITEMS, settings).eval(), IDS, model), "cpu"
    )


@given(
    sessions,
    st.sampled_from(IDS),
    st.sampled_from([(1.0, 1.0, 1.0), (0.5, 2.0, 0.0)]),
    st.booleans(),
    st.sampled_from([0, 1, 2]),
)
def test_the_parts_add_up_to_the_score(session, item, lambdas, anchors, layers) -> None:
    names = ("lambda0", "lambda1", "lambda2")
    rec = recommender_of(
        anchors=anchors, layers=layers, **dict(zip(names, lambdas, strict=True))
    )
    found = rec.explain(session, item)
    assert (list(found.parts), found.probability, found.repeat_chance) == (
        PARTS[:3],
        None,
        None,
    )
    assert sum(found.parts.values()) == pytest.approx(found.score, abs=1e-5)
    assert found.parts["initial intention"] == 0 or lambdas[2] > 0
    shown = {one.item: one.score for one in rec.recommend(session, k=ITEMS)}
    assert found.score == pytest.approx(shown[item], abs=1e-6)
    assert list(shown).index(item) + 1 == found.rank
    for name in PARTS[1:3] if layers else ():
        by_item = {
            click.item: click.attention[name] for click in found.clicks
        }  # clicks on an item share its node
        assert sum(by_item.values()) == pytest.approx(1, abs=1e-5)


@given(sessions, st.sampled_from(IDS))
def test_each_part_is_the_score_with_one_lambda_alone(session, item) -> None:
    """A second model has the same weights and all other lambdas 0."""
    found = recommender_of(lambda0=0.5, lambda1=2.0, lambda2=3.0).explain(session, item)
    for place, value in enumerate(found.parts.values()):
        alone = {
            f"lambda{other}": (0.5, 2.0, 3.0)[other] if other == place else 0.0
            for other in range(3)
        }
        assert value == pytest.approx(
            recommender_of(**alone).explain(session, item).score, abs=1e-5
        )


@given(sessions, st.sampled_from(IDS))
def test_the_effect_is_the_difference_to_the_session_without_the_click(
    session, item
) -> None:
    rec = recommender_of()
    found = rec.explain(session, item)
    assert [click.item for click in found.clicks] == session[-9:]
    assert found.unread == max(0, len(session) - 9)
    if len(session) == 1:
        assert (found.clicks[0].effect, found.clicks[0].rank_without) == (None, None)
        return
    for place, click in enumerate(found.clicks, start=found.unread):
        without = rec.explain(session[:place] + session[place + 1 :], item)
        assert click.effect == pytest.approx(found.score - without.score, abs=1e-5)
        assert click.rank_without == without.rank


def test_attention_is_the_softmax_of_the_layer() -> None:
    """One head, one layer: softmax of the products of queries and keys, worked out for the session
    a b a c."""
    rec = recommender_of(heads=1)
    model = rec.model
    layer = rec.model.transformer[0]
    batch = SessionBatch.of([[1, 2, 1, 3]])
    seen = []
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.session_vectors(batch)
    (hidden,) = seen  # [3, d]: a, b, c
    queries, keys, _ = layer.queries_keys_values(hidden).chunk(3, dim=1)
    weights = (queries @ keys.T / 8**0.5).softmax(1)
    found = rec.explain(["i1", "i2", "i1", "i3"], "i5").clicks
    wanted = weights[:, [0, 1, 0, 2]]  # by click
    assert [click.attention["latest intention"] for click in found] == pytest.approx(
        wanted[2].tolist(), abs=1e-6
    )
    assert [click.attention["initial intention"] for click in found] == pytest.approx(
        wanted[0].tolist(), abs=1e-6
    )


def test_models_without_parts_are_explained_by_clicks(shop: Recommender) -> None:
    # a b gives c 1 + 2 * 5; without a 2 * 5, without b 2 * 1.
    found = shop.explain(["x", "a", "b"], "c")
    assert (found.score, found.rank, found.parts, found.title) == (11.0, 1, {}, "Clogs")
    assert [(click.item, click.effect, click.attention) for click in found.clicks] == [
        ("a", 1.0, {}),
        ("b", 9.0, {}),
    ]
    assert [click.rank_without for click in found.clicks] == [1, 2]
    assert found.unknown == ("x",)


def test_without_a_click_an_earlier_one_is_read(shop: Recommender) -> None:
    # d a b reads a b; without b it is d a: d's 0 and twice a's 1.
    found = shop.explain(["d", "a", "b"], "c")
    assert (found.unread, [click.effect for click in found.clicks]) == (
        1,
        [11.0 - 10.0, 11.0 - 2.0],
    )


def test_several_items_at_once(shop: Recommender) -> None:
    assert shop.explain(["a", "b"], ["c", "e"]) == [
        shop.explain(["a", "b"], item) for item in ("c", "e")
    ]


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
def test_each_part_is_what_the_definition_says(session, item, cosine) -> None:
    """p = g r + (1 - g) e, worked out from the model's vectors and the numbers of the repeat part."""
    rec = recommender_of("posrec-plus", cosine=cosine)
    read = session[first_read(len(session), 9, 4) :]
    numbers = [IDS.index(one) + 1 for one in read]
    number = IDS.index(item) + 1
    with torch.no_grad():
        vectors, table, own = rec.model.batch_vectors(SessionBatch.of([numbers]))
    z = (table[:ITEMS] @ vectors[0]).tolist()
    of_item = {one: slot for slot, one in enumerate(own.items[0].tolist()) if one}
    delta = {one: own.raised[0, slot].item() for one, slot in of_item.items()}
    total = sum(math.exp(z[one - 1] + delta.get(one, 0)) for one in range(1, ITEMS + 1))
    repeats = {
        one: math.exp(own.repeat[0, slot].item()) for one, slot in of_item.items()
    }
    g = sum(repeats.values())
    p = (1 - g) * math.exp(z[number - 1] + delta.get(number, 0)) / total + repeats.get(
        number, 0
    )
    why = rec.explain(session, item)
    assert list(why.parts) == PARTS
    assert sum(why.parts.values()) == pytest.approx(why.score, abs=1e-4)
    assert (why.parts["clicked before"] == 0) == (item not in read)
    assert why.probability == pytest.approx(p, rel=1e-4)
    assert math.exp(why.score) == pytest.approx(p, rel=1e-4)
    assert why.repeat_chance == pytest.approx(g, abs=1e-5)
    assert sum(why.parts[name] for name in PARTS[:4]) == pytest.approx(
        z[number - 1], abs=1e-4
    )
    assert why.parts["normalisation"] == pytest.approx(
        math.log((1 - g) / total), abs=1e-4
    )
    for place, (click, one) in enumerate(zip(why.clicks, numbers, strict=True)):
        share = (
            0 if one in numbers[place + 1 :] else repeats[one] / g
        )  # an item's share stands at its latest click
        assert click.attention["clicked before"] == pytest.approx(share, abs=1e-5)


def test_attention_of_posrec_plus_is_the_softmax_of_its_layer() -> None:
    """One head, one layer, no positions: softmax of the products of queries and keys, plus s for
    clicks on the item of the click that asks; worked out for the session a b a."""
    rec = recommender_of("posrec-plus", heads=1, encoding="none", message=False)
    model = rec.model
    layer = rec.model.reader.transformer[0]
    layer.same_item.data.fill_(0.7)
    seen = []
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 0]))
    model.session_vectors(SessionBatch.of([[1, 2, 1]]))
    hidden, first = seen  # [3, d]: a, b, a; and the first click, which asks at the last
    queries, keys, _ = layer.queries_keys_values(torch.cat([hidden, first])).chunk(
        3, dim=1
    )
    logits = queries @ keys[:3].T / 8**0.5 + torch.tensor([0.7, 0, 0.7])
    wanted = logits.softmax(1)
    found = rec.explain(["i1", "i2", "i1"], "i5").clicks
    assert [click.attention["latest intention"] for click in found] == pytest.approx(
        wanted[2].tolist(), abs=1e-6
    )
    assert [click.attention["initial intention"] for click in found] == pytest.approx(
        wanted[3].tolist(), abs=1e-6
    )


# How it is drawn.


def table_text(table) -> str:
    console = TerminalConsole(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_tables_of_log_probabilities_fit_into_eighty_columns(
    trained_plus: Path,
) -> None:
    """Long names are cut, so that all values and headings are whole."""
    run = load_run(trained_plus)
    ids = [f"{one}-with-a-name-that-is-too-long" for one in run.vocabulary.ids]
    rec = Recommender(replace(run, vocabulary=Vocabulary(ids)), "cpu")
    found = rec.explain([ids[1], ids[2], ids[2], ids[3]], [ids[4], ids[20]])
    parts = table_text(parts_table(found)).splitlines()
    clicks = table_text(clicks_table(found[0])).splitlines()
    heading = " ".join(parts[:2]).split()
    words = [
        "clicked",
        "item",
        "chance",
        "score",
        "last",
        "item",
        "latest",
        "initial",
        "trend",
        "before",
        "norm.",
    ]
    assert sorted(heading) == sorted(words)
    for line, one in zip(parts[2:], found, strict=True):
        assert line.split()[1] == f"{one.item[:11]}…"
        assert line.split()[2:4] == [f"{one.probability:.1%}", f"{one.score:.3f}"]
        assert line.split()[4:] == [f"{value:+.3f}" for value in one.parts.values()]
    assert [line.split()[1] for line in clicks[2:]] == [
        f"{ids[place][:17]}…" for place in (1, 2, 2, 3)
    ]
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


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            "trained",
            [
                "What the score is made of",
                "last item",
                "What each click did for",
                "rank without",
                "█",
                "%",
            ],
        ),
        (
            "trained_plus",
            [
                "norm.",
                "trend",
                "chance",
                "The chance that the next click repeats an item of the session",
            ],
        ),
    ],
)
def test_recommend_explains_in_tables_and_as_json(
    request: pytest.FixtureRequest, run: str, words: list[str]
) -> None:
    folder = request.getfixturevalue(run)
    asked = ("recommend", folder, "i1", "i2", "i1", "-k", 3, "--explain")
    done = command(*asked)
    assert (done.code, [one for one in words if one not in done.out]) == (0, []), (
        done.err
    )
    printed = json.loads(command(*asked, "--json").out)
    answer = Recommender.load(folder).recommend(["i1", "i2", "i1"], k=3)
    for shown in ("items", "explanations"):
        assert [one["item"] for one in printed[shown]] == items_of(answer)
    for one in printed["explanations"]:
        assert sum(one["parts"].values()) == pytest.approx(one["score"], abs=1e-4)


def test_only_what_is_known_is_explained(trained: Path) -> None:
    assert "explanations" not in json.loads(
        command("recommend", trained, "i1", "--json").out
    )
    popular = json.loads(command("recommend", trained, "x", "--explain", "--json").out)
    assert (popular["popular"], popular["unknown"], "explanations" in popular) == (
        True,
        ["x"],
        False,
    )


def test_recommend_about_an_item(trained: Path) -> None:
    printed = json.loads(
        command(
            "recommend", trained, "i1", "i2", "-k", 1, "--about", "i25", "--json"
        ).out
    )
    assert [one["item"] for one in printed["explanations"]] == ["i25"]
    refused("recommend", trained, "i1", "--about", "x")


def test_a_counting_run_is_explained_without_parts(counted: Path) -> None:
    done = command("recommend", counted, "i1", "i2", "--explain", "-k", 2)
    assert (
        done.code,
        "What the score is made of" in done.out,
        "What each click did" in done.out,
    ) == (0, False, True)


@pytest.mark.process
def test_recommending_imports_no_training_code(trained: Path) -> None:
    """Nor torch's compiler and its sympy, which take two seconds: a server would start that much
    later."""
    slow = ("posrec.training", "polars", "onnx", "torch._dynamo", "sympy")
    code = (
        "import sys, posrec; rec = posrec.Recommender.load(sys.argv[1]); rec.explain(['i1'], 'i2')\n"
        f"print([name for name in sys.modules if name.startswith({slow})])"
    )
    done = own_process(trained, code=code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
