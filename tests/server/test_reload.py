"""What is made of a run once is only a help: a run is served without it where it is damaged."""

import shutil
import sys
from pathlib import Path

import pytest

from posrec.data.vocabulary import FILE, Vocabulary
from posrec.recommend.artifacts import RunCache
from posrec.recommend.index_settings import IndexSettings
from posrec.run import load_run
from posrec.server.metrics import Metrics
from posrec.server.reload import LiveRun
from tests.helpers import listed

pytest.importorskip("onnxruntime")


BOTH = IndexSettings("faiss", lists=2, probes=2)


@pytest.mark.parametrize("damage", [b"", b"no such thing", None], ids=["empty", "other", "cut"])
@pytest.mark.parametrize("kind", ["onnx", "index"])
def test_a_damaged_file_is_removed_and_done_without(
    trained: Path, tmp_path: Path, kind: str, damage: bytes | None
) -> None:
    pytest.importorskip("faiss")
    cache = RunCache(str(tmp_path / "cache"), index=BOTH)
    made = cache.make(load_run(trained))
    path: Path = getattr(made, kind)
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    live = LiveRun(trained, "cpu", cache, Metrics(tmp_path))
    live.begin()
    assert live.problem is None
    assert live.current is not None
    ranker = live.current.ranker
    assert (ranker.onnx is None, ranker.found_by) == ((True, "faiss") if kind == "onnx" else (False, "exact"))
    assert (live.wanted, live.making) == (live.made, None)  # no second try by this worker
    assert not path.exists()
    assert len(listed(tmp_path / "cache")) == 1  # the other one stays
    fresh = LiveRun(trained, "cpu", cache, Metrics(tmp_path))
    fresh.begin()
    assert fresh.making is not None
    fresh.stop_making()


def test_where_a_package_is_missing_its_file_stays(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another environment's, which has the package."""
    pytest.importorskip("faiss")
    cache = RunCache(str(tmp_path / "cache"), index=BOTH)
    made = cache.make(load_run(trained))
    monkeypatch.setitem(sys.modules, "faiss", None)
    live = LiveRun(trained, "cpu", cache, Metrics(tmp_path))
    live.begin()
    assert live.current is not None
    assert (live.current.ranker.onnx is None, live.current.ranker.found_by) == (False, "exact")
    assert made.index is not None
    assert made.index.is_file()


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
