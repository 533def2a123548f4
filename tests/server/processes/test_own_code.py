"""Serving runs of users' own models and encodings: workers and reloads use what --model names."""

import shutil
from pathlib import Path

import pytest

import posrec
from posrec.data.dataset import PreparedDataset
from tests.contract.models import page_model
from tests.helpers import command, fitted, items_of
from tests.server.asgi import in_process
from tests.server.server_process import serving, until

QUICK = {"d": 16, "epochs": 1, "batch_size": 64}
ENCODING = """import torch
def sixteen(forward, backward, length):
    return torch.stack([1 / (1 + forward), 1 / (1 + backward)], dim=-1).repeat(1, 1, 8)
"""


@pytest.fixture(scope="module")
def folder(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "recency.py").write_text(page_model())
    (folder / "mine.py").write_text(ENCODING)
    fitted(small, f"{folder}/recency.py:RECENCY", folder / "run", QUICK)
    return folder


@pytest.mark.slow
def test_two_workers_serve_a_model_of_ones_own_and_reload_it(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    spec = f"{folder}/recency.py:RECENCY"
    shutil.copytree(folder / "run", run)
    recommender = posrec.Recommender.load(run, "cpu", spec=spec)
    expected = items_of(recommender.recommend(["i1", "i2"], k=3))
    with serving(run, "--model", spec, "--workers", 2) as server:
        server.wait_for("serving", 2)
        assert server.recommend("i1", "i2", k=3).items == expected
        assert server.get("/v1/run").json()["model"] == "RECENCY"
        shutil.copytree(folder / "run", tmp_path / "next")
        shutil.move(run, tmp_path / "old")
        (tmp_path / "next").rename(run)

        def both_have_reloaded() -> bool:
            reasons = [line["why"] for line in server.logged("serving")]
            return reasons.count("replaced on disk") == 2

        until(both_have_reloaded)
        assert server.recommend("i1").status == 200


def test_without_the_option_the_log_names_it_and_no_code_runs(folder: Path) -> None:
    with in_process(folder / "run") as server:
        assert "--model" in server.refusals()[0]
        assert server.recommend("i1").status == 503


@pytest.mark.parametrize("option", ["--model", "--encoding"])
def test_a_wrong_name_is_refused_before_anything_is_started(
    folder: Path, option: str
) -> None:
    done = command("serve", folder / "run", "--port", 0, option, "gone.py:MINE")
    assert done.code == 2
    assert f"{option} gone.py:MINE" in done.err


def test_a_server_with_an_encoding_of_ones_own(
    small: PreparedDataset, folder: Path, tmp_path: Path
) -> None:
    encoding = f"{folder}/mine.py:sixteen"
    run, _ = fitted(small, "posrec", tmp_path / "run", {**QUICK, "encoding": encoding})
    expected = items_of(posrec.Recommender(run, "cpu").recommend(["i1"], k=3))
    with serving(run.path, "--encoding", encoding) as server:
        assert server.recommend("i1", k=3).items == expected
