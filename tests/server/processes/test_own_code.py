"""Serving runs of users' own models and encodings: workers and reloads use what --model names."""

import shutil
from pathlib import Path

import pytest
import torch

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.fitting.fit import fit_run
from posrec.progress import SilentProgress
from tests.contract.models import page_model
from tests.helpers import own_process
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
    fit_run(
        small,
        f"{folder}/recency.py:RECENCY",
        folder / "run",
        QUICK,
        "cpu",
        progress=SilentProgress(),
    )
    return folder


@pytest.mark.slow
def test_two_workers_serve_a_model_of_ones_own_and_reload_it(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    spec = f"{folder}/recency.py:RECENCY"
    shutil.copytree(folder / "run", run)
    expected = posrec.Recommender.load(run, "cpu", spec=spec).recommend(
        ["i1", "i2"], k=3
    )
    with serving(run, "--model", spec, "--workers", 2) as server:
        until(lambda: len(server.said("serving")) == 2)
        assert [
            one["item"] for one in server.recommend("i1", "i2", k=3).json()["items"]
        ] == [o.item for o in expected]
        assert server.ask("GET", "/v1/run").json()["model"] == "RECENCY"
        shutil.copytree(folder / "run", tmp_path / "next")
        shutil.move(run, tmp_path / "old")
        (tmp_path / "next").rename(run)
        until(
            lambda: (
                [line["why"] for line in server.said("serving")].count(
                    "replaced on disk"
                )
                == 2
            )
        )
        assert server.recommend("i1").status == 200


def test_without_the_option_the_log_names_it_and_no_code_runs(folder: Path) -> None:
    with serving(folder / "run") as server:
        refused = next(
            line for line in server.log if "can't be served" in line.get("message", "")
        )
        assert "--model" in refused["reason"]
        assert server.recommend("i1").status == 503


@pytest.mark.parametrize("option", ["--model", "--encoding"])
def test_a_wrong_name_is_refused_before_anything_is_started(
    folder: Path, option: str
) -> None:
    done = own_process("serve", folder / "run", "--port", 0, option, "gone.py:MINE")
    assert (done.returncode, f"{option} gone.py:MINE" in done.stderr) == (2, True)


def test_a_server_with_an_encoding_of_ones_own(
    small: PreparedDataset, folder: Path, tmp_path: Path
) -> None:
    settings = {**QUICK, "encoding": f"{folder}/mine.py:sixteen"}
    run, _ = fit_run(
        small, "posrec", tmp_path / "run", settings, "cpu", progress=SilentProgress()
    )
    with (
        serving(run.path, "--encoding", f"{folder}/mine.py:sixteen") as server,
        torch.inference_mode(),
    ):
        expected = posrec.Recommender(run, "cpu").recommend(["i1"], k=3)
        assert [one["item"] for one in server.recommend("i1", k=3).json()["items"]] == [
            one.item for one in expected
        ]
