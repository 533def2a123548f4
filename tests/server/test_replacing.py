"""Runs that are replaced, overwritten or fixed while they are served, through the real command."""

import os
import shutil
from pathlib import Path

import pytest

from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.helpers import update_checksums
from tests.recommend.test_trial import USELESS
from tests.server.server_process import Server, serving, until

pytest.importorskip("uvicorn")


def refusals(server: Server) -> list[str]:
    return [line["reason"] for line in list(server.log) if "can't be served" in line.get("message", "")]


def best(server: Server) -> list[str]:
    return [one["item"] for one in server.recommend("i3", "i4", k=5).json()["items"]]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def renumbered(run: Path, tmp_path: Path) -> Path:
    """The same run with its items in another order: its weights with the vocabulary of `run` name wrong items."""
    import torch

    from posrec.data.vocabulary import Vocabulary
    from posrec.runs.run import save_run

    opened = load_run(run)
    order = torch.arange(30).flip(0)
    opened.vocabulary.__init__([opened.vocabulary.ids[i] for i in order.tolist()], {})  # type: ignore[misc]
    assert isinstance(opened.vocabulary, Vocabulary)
    with torch.no_grad():
        table = opened.model.embedding.vectors()
        table.copy_(table[order])
    save_run(opened, tmp_path / "renumbered")
    return tmp_path / "renumbered"


def test_a_run_overwritten_in_place_never_gives_an_answer_of_two_runs(run: Path, renumbered: Path) -> None:
    """Every state that a copy of single files goes through is refused, until all files are there."""
    right = [one.item for one in Recommender(load_run(run), "cpu").recommend(["i3", "i4"], 5)]
    assert right == [one.item for one in Recommender(load_run(renumbered), "cpu").recommend(["i3", "i4"], 5)]
    with serving(run) as server:
        for place, path in enumerate(sorted(renumbered.iterdir()), start=1):
            (run / path.name).write_bytes(path.read_bytes())
            if place == 3:  # the same answers as long as the copy is not complete
                until(lambda: any("does not match checksums.json" in reason for reason in refusals(server)))
            assert best(server) == right
        for name in {path.name for path in run.iterdir()} - {path.name for path in renumbered.iterdir()}:
            (run / name).unlink()
        until(lambda: server.metric("posrec_reloads_total") >= 1)
        assert best(server) == right


def test_weights_that_are_cut_short_while_they_are_served_do_not_end_the_server(run: Path) -> None:
    with serving(run) as server:
        before = best(server)
        os.truncate(run / "model.safetensors", 0)
        until(lambda: refusals(server))
        assert best(server) == before
        assert server.process.poll() is None


def test_a_link_to_another_run_is_followed(run: Path, counted: Path, tmp_path: Path) -> None:
    """The documented way to replace a run: a new folder, then one rename."""
    current = tmp_path / "current"
    current.symlink_to(run)
    with serving(current) as server:
        assert server.ask("GET", "/v1/run").json()["model"] == "posrec"
        (tmp_path / "next").symlink_to(counted)
        (tmp_path / "next").rename(current)
        until(lambda: server.ask("GET", "/v1/run").json()["model"] == "pop")
        assert refusals(server) == []


def test_a_useless_run_is_refused_and_the_old_one_stays(run: Path, trained: Path) -> None:
    """One kind of damage after the other, each on top of whole files."""
    with serving(run) as server:
        before = best(server)
        for damage, reason in USELESS.values():
            refused = len(refusals(server))
            shutil.copytree(trained, run, dirs_exist_ok=True)
            damage(run)
            update_checksums(run)
            until(lambda reason=reason, refused=refused: any(reason in one for one in refusals(server)[refused:]))
            assert best(server) == before


@pytest.mark.parametrize("name", [
    "config.json",
    pytest.param("model.safetensors", marks=pytest.mark.slow),
    pytest.param("vocabulary.json", marks=pytest.mark.slow),
    "popularity.npy",
    pytest.param("metrics.json", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_server_started_on_a_damaged_run_serves_it_once_it_is_fixed(run: Path, name: str) -> None:
    good = (run / name).read_bytes()
    (run / name).write_bytes(b"damaged")
    with serving(run) as server:
        answer = server.ask("GET", "/readyz")
        assert answer.status == 503
        assert str(run) not in answer.body.decode()
        (run / name).write_bytes(good)
        until(lambda: server.ask("GET", "/readyz").status == 200)
