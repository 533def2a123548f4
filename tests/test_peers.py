"""The comparison with other libraries: settings that exist, rows that are kept, time limits."""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.peers import offline
from benchmarks.peers.libraries.exchange import Job
from benchmarks.peers.libraries.recbole_graphs import checked, session_graphs
from benchmarks.peers.measure import PACKAGES, is_final
from benchmarks.peers.settings import settings_of
from posrec.config import split_settings
from posrec.models.registry import MODELS, find_spec
from posrec.testing import small_dataset
from posrec.training.settings import Settings
from tests.helpers import ROOT, SOURCE, own_process

DATASETS = ("diginetica", "yoochoose", "demo")
# What RecBole, RePlay and PyTorch's TensorBoard writer ask of the packages that they import.
USING_STAND_INS = """
import importlib, os, sys
folder, *names = sys.argv[1:]
sys.path.insert(0, folder)
for name in names:
    module = importlib.import_module(name)
    assert module.__file__.startswith(folder)
    assert importlib.import_module(f"{name}.any.module").AnyName is module.AnyName
    assert not hasattr(module, "__all__")
    assert int | module.AnyClass
    class Derived(module.AnyClass): pass
    made = module.AnyClass.made_by("something", of=1)
    made.fields["key"].value = 1
    assert list(made.method()) == []
    os.path.join(made.folder(), "file")
"""


def job_of(folder: Path, minutes: float | None) -> Job:
    """A training on the sessions 1 2, 2 3 and 3 1 2 3 1, one a split."""
    sessions: dict[str, Any] = {"items": np.array(3), "vocabulary": np.array(3)}
    splits = {"train": [1, 2], "validation": [2, 3], "test": [3, 1, 2, 3, 1]}
    for split, items in splits.items():
        sessions[f"{split}_items"] = np.array(items)
        sessions[f"{split}_offsets"] = np.array([0, len(items)])
    np.savez(folder / "sessions.npz", **sessions)
    job = {"data": "", "model": "sasrec", "settings": {}, "device": "cpu", "threads": 1}
    job |= {"peer_folder": None, "minutes": minutes}
    job |= {"sessions": str(folder / "sessions.npz")}
    (folder / "job.json").write_text(json.dumps(job))
    return Job(folder / "job.json")


def always_two(sessions: Any) -> Any:
    return np.tile([0.0, 1.0, 0.0], (len(sessions), 1))


@pytest.mark.parametrize(("minutes", "epochs"), [(None, 3), (60, 3), (0, 1)])
def test_a_training_ends_with_the_epoch_in_which_its_time_is_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    minutes: float | None,
    epochs: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    job = job_of(tmp_path, minutes)
    epoch = job.timed(lambda number: number)
    with job.training():
        for number in range(3):
            assert epoch(number) == number
            if number == 0:
                job.is_best()
    job.finish(always_two, always_two)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["epochs"] == epochs
    assert result["best_epoch"] == 1
    assert result["ended_by_limit"] == (minutes == 0)
    # Item 2 is first; the ties of 1 and 3 count against them.
    assert np.load(tmp_path / "ranks.npy").tolist() == [3, 1, 3, 3]


def test_posrec_has_every_setting_that_it_is_compared_with() -> None:
    for dataset in DATASETS:
        for name in MODELS:
            for values in settings_of(dataset, "posrec", name).values():
                settings = values.copy()
                spec = find_spec(settings.pop("model", name))
                model, training = split_settings(settings, spec.config(), Settings())
                assert settings.items() <= (asdict(training) | asdict(model)).items()


def test_a_training_is_run_again_if_it_failed_or_may_take_longer() -> None:
    ended = {"minutes": 10, "ended_by_limit": True}
    assert is_final(ended, 10)
    assert not is_final(ended, 11)
    assert not is_final(ended, None)
    assert is_final({"minutes": 10, "ended_by_limit": False}, None)
    assert is_final({"minutes": None, "ended_by_limit": False}, 10)
    assert not is_final({"minutes": None, "error": "no memory"}, 10)


def test_quick_graphs_are_those_of_recbole() -> None:
    """The session 5 7 9 7 and the padding 0, which is the first node."""
    node, edges, item = session_graphs(torch.tensor([[5, 7, 9, 7, 0]]))
    assert node.tolist() == [[1, 2, 3, 2, 0]]
    assert item.tolist() == [[0, 5, 7, 9, 0]]
    expected = torch.zeros(5, 10)
    expected[2, [1, 3]] = 0.5  # into 7, from 5 and from 9
    expected[3, 2] = 1  # into 9
    expected[1, 5 + 2] = 1  # out of 5, 7 and 9
    expected[2, 5 + 3] = 1
    expected[3, 5 + 2] = 1
    assert torch.equal(edges, expected[None])


def test_quick_graphs_that_are_not_recboles_end_the_training() -> None:
    session = torch.tensor([[1, 2]])
    of_another = session_graphs(torch.tensor([[1, 1]]))
    with pytest.raises(ValueError, match="are not RecBole's"):
        checked(lambda clicks: of_another)(session)
    graphs = checked(session_graphs)
    graphs(session)
    assert torch.equal(graphs(session)[0], torch.tensor([[0, 1]]))


def test_the_versions_without_a_package_index_are_those_with_one() -> None:
    for peer in ("recbole", "rectools", "replay", "implicit"):
        names = {re.sub(r"\[.*\]", "", package) for package in PACKAGES[peer]}
        assert names & set(offline.WHEELS)


# In a process: other tests use some of these packages.
@pytest.mark.process
def test_a_stand_in_has_every_module_and_every_name(tmp_path: Path) -> None:
    offline.write_stand_ins(tmp_path)
    done = own_process(str(tmp_path), *offline.STAND_INS, code=USING_STAND_INS)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_a_training_with_a_row_is_not_run_again(tmp_path: Path) -> None:
    small_dataset(tmp_path / "shop" / "data")

    def run(*models: str) -> Any:
        line = [sys.executable, "-m", "benchmarks.peers.measure", "shop/data"]
        line += ["--work", "work", "--out", "rows.json"]
        line += ["--peers", "posrec", "--models", *models]
        env = {"PYTHONPATH": f"{ROOT}:{SOURCE}"}
        subprocess.run(line, cwd=tmp_path, env=env, check=True, capture_output=True)
        return json.loads((tmp_path / "rows.json").read_text())

    [first] = run("vsknn")
    assert first == first | {"dataset": "shop", "peer": "posrec", "model": "vsknn"}
    kept, *others = run("vsknn", "itemknn")
    assert kept == first
    names = settings_of("shop", "posrec", "itemknn").keys()
    assert {row["setting"] for row in others} == names
    assert all("error" not in row for row in others)
    low, high = first["intervals"]["recall@20"]
    assert low <= first["metrics"]["recall@20"] <= high
