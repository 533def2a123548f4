"""Runs of users' own models in every command that uses a run; without --model each refuses and runs
no code."""

import json
from pathlib import Path
from typing import Any

import pytest

import posrec
from posrec.errors import InputError
from posrec.models.baselines.counting.popularity import Pop, PopConfig
from posrec.models.registry import ModelSpec
from posrec.progress import SilentProgress
from tests.contract.models import own_spec, page_model
from tests.helpers import chain_shop, command, fitted

MINE = ("--model", "recency.py:RECENCY")
QUIET: dict[str, Any] = {"device": "cpu", "progress": SilentProgress()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's model in recency.py, a dataset called shop, and a run of the model on it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "recency.py").write_text(page_model())
    (folder / "sessions.jsonl").write_text('["1", "2"]\n')
    chain_shop(folder, seed=0, sessions=60).path.rename(folder / "shop")
    shop = posrec.load(folder / "shop")
    settings = {"d": 16, "epochs": 1, "batch_size": 64}
    fitted(shop, f"{folder}/recency.py:RECENCY", folder / "run", settings)
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "run", "shop"),
        ("recommend", "run", "1", "2"),
        ("score", "run", "sessions.jsonl", "scored.jsonl"),
        ("export", "run", "--onnx", "refused.onnx"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_names_the_option_and_runs_no_code(
    here: Path, words: tuple[str, ...]
) -> None:
    traced = f"from pathlib import Path\nPath('ran').touch()\n{page_model()}"
    (here / "recency.py").write_text(traced)
    refused = command(*words)
    (here / "recency.py").write_text(page_model())
    assert refused.code == 2
    assert "--model FILE.py:SPEC" in refused.err
    assert not (here / "ran").exists()


def test_recommend_and_score_agree_with_python(here: Path) -> None:
    recommender = posrec.Recommender.load("run", "cpu", spec="recency.py:RECENCY")
    answer = recommender.recommend(["1", "2"], k=3)
    expected = [recommendation.item for recommendation in answer]
    done = command("recommend", "run", "1", "2", "-k", 3, "--json", *MINE)
    items = json.loads(done.out)["items"]
    assert [item["item"] for item in items] == expected
    options = ("-k", 3, "--overwrite", *MINE)
    done = command("score", "run", "sessions.jsonl", "out.jsonl", *options)
    assert done.code == 0, done.err
    assert json.loads((here / "out.jsonl").read_text())["items"] == expected


def test_an_export_and_an_index_of_ones_own_model(here: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    pytest.importorskip("faiss")
    done = command("export", "run", "--onnx", "own.onnx", "--index", "own.faiss", *MINE)
    assert done.code == 0, done.err
    assert "Scores differ from torch's by" in done.out
    assert (here / "own.faiss").is_file()


def test_tune_searches_the_training_of_a_spec_without_a_search_space(
    here: Path,
) -> None:
    options = ("--trials", 1, "--epochs", 1, "--set", "d=8", "--out", "tuning")
    done = command("tune", "shop", *options, *MINE)
    assert done.code == 0, done.err
    command_line = done.out.strip().splitlines()[-1]
    assert command_line.startswith("posrec train shop --model recency.py:RECENCY --out")
    tried = json.loads((here / "tuning" / "tuning.json").read_text())
    searched = tried["recency.py:RECENCY"]["history"][0]["settings"].keys()
    assert searched == {"learning_rate", "batch_size", "l2", "decay_every"}


def test_tune_searches_what_the_spec_names(here: Path) -> None:
    spec = own_spec()
    searched = ModelSpec(spec.model, spec.config, spec.about, search={"d": (4, 8)})
    shop = posrec.load("shop")
    result = posrec.tune(shop, searched, trials=3, epochs=1, **QUIET)
    assert result.default_value is None  # the default width, 100, is not in the space
    assert set(result.to_frame()["d"]) <= {4, 8}


def test_a_counting_model_without_a_search_space_has_nothing_to_tune(
    here: Path,
) -> None:
    spec = ModelSpec(Pop, PopConfig, "")
    with pytest.raises(InputError, match=r"nothing to tune.*ModelSpec\(search=\)"):
        posrec.tune(posrec.load("shop"), spec, **QUIET)


def test_fit_and_compare_take_a_spec(here: Path) -> None:
    data = posrec.load("shop")
    spec = own_spec()
    quick: dict[str, Any] = {"d": 8, "epochs": 1}
    recommender = posrec.fit(data, spec, **quick, **QUIET)
    assert len(recommender.recommend(["1"], k=3)) == 3
    result = posrec.compare(data, [spec, "pop"], settings=quick, **QUIET)
    assert list(result.metrics) == ["Recency", "pop"]
