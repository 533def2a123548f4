"""What is made of a run once is only a help: a run is served without it where it is damaged."""

import shutil
from pathlib import Path

import pytest

from posrec.data.vocabulary import FILE, Vocabulary
from posrec.runs import load_run
from posrec.serving.index_settings import IndexSettings
from posrec.serving.live_run import LiveRun
from posrec.serving.metrics import Metrics
from posrec.serving.run_cache import NOTHING, RunCache
from tests.helpers import listed

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("damage", [b"", b"no such thing", None])
@pytest.mark.parametrize("kind", ["onnx", "index"])
def test_damaged_files_are_removed_and_done_without(trained: Path, tmp_path: Path, kind: str, damage: bytes) -> None:
    if kind == "index":
        pytest.importorskip("faiss")
    settings = IndexSettings("faiss" if kind == "index" else "exact", lists=2, probes=2)
    cache = RunCache(str(tmp_path / "cache"), onnx=kind == "onnx", index=settings)
    path = getattr(cache.make(load_run(trained)), kind)
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    live = LiveRun(trained, "cpu", cache, Metrics(tmp_path))
    live.begin()
    assert live.problem is None
    assert live.current is not None
    assert (live.current.ranker.onnx, live.current.ranker.found_by) == (None, "exact")
    assert (live.wanted, live.making) == (NOTHING, None)  # no second try while it runs
    assert listed(tmp_path / "cache") == []


def test_a_damaged_run_does_not_cost_what_was_made(trained: Path, tmp_path: Path) -> None:
    """It is the run that can't be served, not the files beside it."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    cache = RunCache(str(tmp_path / "cache"))
    made = cache.make(load_run(run))
    (run / FILE).write_text(Vocabulary(["only", "these"]).to_json())
    live = LiveRun(run, "cpu", cache, Metrics(tmp_path))
    live.begin()
    assert live.current is None
    assert "fewer than the model's 30 items" in str(live.problem)
    assert made.onnx is not None
    assert made.onnx.is_file()
