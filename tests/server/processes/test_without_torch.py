"""An exported run is served without torch; only what needs the model itself, such as explanations,
imports it."""

import json
import shutil
from pathlib import Path

import pytest

from posrec.device import gpu_drivers
from posrec.errors import RunFailed
from posrec.recommend.recommender import Recommender, open_recommender
from posrec.runs.run import load_run
from tests.helpers import items_of, own_process

pytest.importorskip("onnxruntime")

SESSION = ["i3", "i4"]
SERVER = """
import json, sys
from pathlib import Path
from tests.server.asgi import in_process

REQUESTS = [
    ("/v1/recommend", {"session": ["i3", "i4"], "k": 5}),
    ("/v1/recommend", {"session": [], "k": 2}),
    ("/v1/recommend", {"session": ["i3", "i4"], "k": 5, "diversify": 0.5, "exclude_seen": True}),
    ("/v1/recommend/batch", {"sessions": [["i3"], ["i4", "i5"]], "k": 2}),
    ("/v1/similar/i3", None), ("/v1/items", None), ("/v1/run", None),
    ("/v1/explain", {"session": ["i3", "i4"], "item": "i5"}),
]
with in_process(Path(sys.argv[1]), onnx=True) as server:
    for path, body in REQUESTS:
        answer = server.ask("POST" if body else "GET", path, body).json()
        loaded = [name for name in ("torch", "onnx", "polars") if name in sys.modules]
        print(json.dumps([path, answer, loaded]))
"""


@pytest.fixture
def recommender(trained: Path) -> Recommender:
    return Recommender(load_run(trained), "cpu")


def ids(answer: dict[str, list[dict[str, str]]]) -> list[str]:
    return [item["item"] for item in answer["items"]]


def test_only_an_explanation_imports_torch(
    recommender: Recommender, trained_with_export: Path
) -> None:
    done = own_process(trained_with_export, code=SERVER, timeout=300)
    paths, answers, loaded = zip(
        *map(json.loads, done.stdout.splitlines()), strict=True
    )
    assert len(answers) == 8, done.stderr
    assert loaded == ([],) * 7 + (["torch"],)
    assert ids(answers[0]) == items_of(recommender.recommend(SESSION, 5))
    assert ids(answers[4]) == items_of(recommender.similar_items("i3"))
    assert paths[-1] == "/v1/explain"
    why = recommender.explain(SESSION, "i5")
    assert answers[-1]["score"] == pytest.approx(why.score, abs=1e-4)


LOADED = """
import sys, posrec
rec = posrec.Recommender.load(sys.argv[1])
sessions = [["i3"], [f"i{n % 30}" for n in range(50)], ["x", "i3"], ["x"]]
answers = rec.recommend(sessions, k=5)
print([len(answer) for answer in answers], rec.uses_onnx, "torch" in sys.modules)
"""


@pytest.mark.skipif(gpu_drivers() != [], reason="torch is asked for the GPU")
def test_python_needs_no_torch_for_an_exported_run(trained_with_export: Path) -> None:
    done = own_process(trained_with_export, code=LOADED)
    assert done.stdout.strip() == "[5, 5, 5, 5] True False", done.stderr


def test_the_model_of_a_replaced_run_is_still_the_one_that_was_opened(
    recommender: Recommender, trained_with_export: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained_with_export, tmp_path / "run"))
    aside = tmp_path / "aside"
    opened = open_recommender(run)
    run.rename(aside)
    run.mkdir()
    assert opened.explain(["i3"], "i4") == recommender.explain(["i3"], "i4")
    changed = open_recommender(aside)
    with (aside / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"?")
    with pytest.raises(RunFailed, match="has changed"):
        changed.explain(["i3"], "i4")


COMMAND = """
import runpy, sys
sys.argv[0] = "posrec"
try:
    runpy.run_module("posrec", run_name="__main__")
finally:
    print([name for name in ("torch", "onnx", "msgspec") if name in sys.modules])
"""


@pytest.mark.parametrize("fixture", ["trained", "trained_with_export"])
def test_the_command_needs_no_torch_for_a_run_with_an_export(
    recommender: Recommender, fixture: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(fixture)
    done = own_process("recommend", run, *SESSION, "-k", 5, "--json", code=COMMAND)
    answer, loaded = done.stdout.rsplit("\n", 2)[:2]
    has_no_export = fixture == "trained"
    assert ("torch" in loaded) is has_no_export
    assert (f"posrec export {run}" in done.stderr) is has_no_export
    assert ids(json.loads(answer)) == items_of(recommender.recommend(SESSION, 5))
