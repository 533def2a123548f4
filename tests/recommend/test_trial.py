"""A run that is complete and gives useless answers is refused, with the reason, by every command that would use it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from posrec.errors import RunFailed
from posrec.io import WEIGHTS, load_tensors, save_tensors
from posrec.models.registry import MODELS
from posrec.recommend.export.opening import try_out
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.fixtures import run_of
from tests.helpers import command, update_checksums, write_lines


def change_json(name: str, change: Callable[[dict], object]) -> Callable[[Path], None]:
    def changed(run: Path) -> None:
        content = json.loads((run / name).read_text())
        change(content)
        (run / name).write_text(json.dumps(content))

    return changed


def no_numbers(run: Path) -> None:
    tensors, about = load_tensors(run / WEIGHTS)
    save_tensors(run / WEIGHTS, {name: torch.full_like(one, torch.nan) for name, one in tensors.items()}, about)


def no_clicks(run: Path) -> None:
    np.save(run / "popularity.npy", np.full(30, np.nan))


USELESS = {
    "all weights NaN": (no_numbers, "a score that is not finite"),
    "an infinite setting": (
        change_json("config.json", lambda c: c.update(lambda1=1e300)),
        "a score that is not finite",
    ),
    "an id that is null": (change_json("vocabulary.json", lambda v: v["ids"].__setitem__(4, None)), "item 5 is None"),
    "an id that is a number": (change_json("vocabulary.json", lambda v: v["ids"].__setitem__(4, 7)), "item 5 is 7"),
    "an id twice": (change_json("vocabulary.json", lambda v: v["ids"].__setitem__(4, "i0")), "'i0' occurs twice"),
    "popularity NaN": (no_clicks, "does not hold the numbers of clicks"),
}


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("how", USELESS)
def test_score_refuses_a_useless_run(run: Path, tmp_path: Path, how: str) -> None:
    damage, reason = USELESS[how]
    damage(run)
    update_checksums(run)  # its files belong together: only what they hold is useless
    sessions = write_lines(tmp_path / "in.jsonl", ['["i1", "i2"]'])
    done = command("score", run, sessions, tmp_path / "out.jsonl")
    assert done.code in (1, 2)
    assert reason in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_passes(name: str, small) -> None:  # type: ignore[no-untyped-def]
    spec = MODELS[name]
    torch.manual_seed(0)
    model = spec.build(30, spec.config()).eval()
    if not spec.is_trained:
        model.count(small.train.items, small.train.offsets)  # type: ignore[operator]
    try_out(Recommender(run_of(model, small.vocabulary.ids, name), "cpu"))


def test_items_that_occur_twice_are_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recommender = Recommender(load_run(trained), "cpu")
    monkeypatch.setattr(recommender.ranker, "rank", lambda queries: [([3, 3], [2.0, 1.0])] * len(queries))
    with pytest.raises(RunFailed, match="items that are not distinct, or do not exist"):
        try_out(recommender)
