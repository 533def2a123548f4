"""An exported run is served without torch; only what needs the model itself, such as explanations,
imports it."""

import json
import shutil
from pathlib import Path

import pytest

from posrec.errors import RunFailed
from posrec.recommend.export.opening import open_recommender
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.helpers import own_process

pytest.importorskip("onnxruntime")
pytest.importorskip("granian")

SERVER = """
import asyncio, json, sys
from posrec.server.application import application
from posrec.server.settings import ServerSettings
from tests.server.asgi import ask

ASKED = [
    ("/v1/recommend", {"session": ["i3", "i4"], "k": 5}),
    ("/v1/recommend", {"session": [], "k": 2}),
    ("/v1/recommend", {"session": ["i3", "i4"], "k": 5, "diversify": 0.5, "exclude_seen": True}),
    ("/v1/recommend/batch", {"sessions": [["i3"], ["i4", "i5"]], "k": 2}),
    ("/v1/similar/i3", None), ("/v1/items", None), ("/v1/run", None),
    ("/v1/explain", {"session": ["i3", "i4"], "item": "i5"}),
]

async def ask_all():
    app = application(ServerSettings((sys.argv[1],)))
    async with app.router.lifespan_context(app):
        for path, body in ASKED:
            answer = await ask(app, path, body)
            loaded = [name for name in ("torch", "onnx", "polars") if name in sys.modules]
            print(json.dumps([path, answer, loaded]))

asyncio.run(ask_all())
"""


def test_only_an_explanation_imports_torch(
    trained: Path, trained_with_export: Path
) -> None:
    done = own_process(trained_with_export, code=SERVER, timeout=300)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 8, done.stderr
    assert [loaded for _, _, loaded in answers[:-1]] == [[]] * 7
    path, why, loaded = answers[-1]
    assert (path, loaded) == ("/v1/explain", ["torch"])
    rec = Recommender(load_run(trained), "cpu")
    assert [one["item"] for one in answers[0][1]["items"]] == [
        o.item for o in rec.recommend(["i3", "i4"], 5)
    ]
    assert [one["item"] for one in answers[4][1]["items"]] == [
        one.item for one in rec.similar_items("i3")
    ]
    assert why["score"] == pytest.approx(
        rec.explain(["i3", "i4"], "i5").score, abs=1e-4
    )


def test_the_model_of_a_replaced_run_is_still_the_one_that_was_opened(
    trained: Path, trained_with_export: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(trained_with_export, tmp_path / "run"))
    opened = open_recommender(copy)
    (tmp_path / "next").mkdir()
    copy.rename(tmp_path / "old")
    (tmp_path / "next").rename(copy)
    assert opened.explain(["i3"], "i4") == Recommender(
        load_run(trained), "cpu"
    ).explain(["i3"], "i4")
    changed = open_recommender(tmp_path / "old")
    with (tmp_path / "old" / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"?")
    with pytest.raises(RunFailed, match="has changed since the run was opened"):
        changed.explain(["i3"], "i4")


COMMAND = """
import runpy, sys
sys.argv[0] = "posrec"
try:
    runpy.run_module("posrec", run_name="__main__")
finally:
    print([name for name in ("torch", "onnx", "msgspec") if name in sys.modules])
"""


@pytest.mark.parametrize("name", ["trained", "trained_with_export"])
def test_the_command_needs_no_torch_for_a_run_with_an_export(
    name: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(name)
    done = own_process("recommend", run, "i3", "i4", "-k", 5, "--json", code=COMMAND)
    answer, loaded = done.stdout.rsplit("\n", 2)[:2]
    assert ("torch" in loaded, f"posrec export {run}" in done.stderr) == (
        name == "trained",
    ) * 2
    expected = Recommender(load_run(run), "cpu").recommend(["i3", "i4"], 5)
    assert [one["item"] for one in json.loads(answer)["items"]] == [
        one.item for one in expected
    ]
