"""Artifacts only make serving quicker: if one is damaged, the run is served without it."""

import gc
import shutil
import sys
import weakref
from pathlib import Path

import pytest

from posrec.data.vocabulary import FILE, Vocabulary
from posrec.recommend.artifacts import ArtifactCache, Artifacts
from posrec.recommend.index_settings import IndexSettings
from posrec.run import load_run
from posrec.server.metrics import Metrics
from posrec.server.reload import RunReloader
from posrec.server.service import Service
from posrec.server.settings import ServerSettings
from tests.fixtures import TWO_LISTS
from tests.helpers import listed, update_checksums

pytest.importorskip("onnxruntime")
pytest.importorskip("faiss")


@pytest.fixture
def cache(artifacts_folder: Path, tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(str(shutil.copytree(artifacts_folder, tmp_path / "cache")), index=TWO_LISTS)


@pytest.fixture
def artifacts(cache: ArtifactCache, trained: Path) -> Artifacts:
    return cache.wanted(load_run(trained))


def started(run: Path, cache: ArtifactCache, folder: Path) -> RunReloader:
    reloader = RunReloader(run, "cpu", cache, Metrics(folder))
    reloader.start()
    return reloader


def used_by(reloader: RunReloader) -> tuple[bool, str]:
    """Whether ONNX Runtime computes, and the kind of search."""
    assert reloader.current is not None
    return reloader.used.onnx is not None, reloader.current.recommender.ranker.search_kind


@pytest.mark.parametrize("damage", [b"", b"no such thing", None], ids=["empty", "other", "cut"])
@pytest.mark.parametrize("kind", ["onnx", "index", "vectors"])
def test_a_damaged_artifact_is_removed_and_not_used(
    trained: Path, cache: ArtifactCache, artifacts: Artifacts, tmp_path: Path, kind: str, damage: bytes | None
) -> None:
    path: Path = getattr(artifacts, kind)
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    reloader = started(trained, cache, tmp_path)
    assert reloader.problem is None
    assert used_by(reloader) == (kind != "onnx", "exact" if kind == "index" else "faiss")
    assert (reloader.used.vectors is None) == (kind == "vectors")
    assert (reloader.wanted, reloader.build) == (reloader.used, None)  # this worker does not build it again
    assert not path.exists()
    assert len(listed(tmp_path / "cache")) == 2  # the others stay
    fresh = started(trained, cache, tmp_path)
    assert fresh.build is not None
    fresh.stop_build()


def test_the_file_of_a_package_that_is_missing_stays(
    trained: Path, cache: ArtifactCache, artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another environment that shares the cache may have the package."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert used_by(started(trained, cache, tmp_path)) == (True, "exact")
    assert artifacts.index is not None
    assert artifacts.index.is_file()


def test_a_damaged_run_does_not_remove_its_artifacts(
    trained: Path, cache: ArtifactCache, artifacts: Artifacts, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / FILE).write_text(Vocabulary(["only", "these"]).to_json())
    update_checksums(run)
    reloader = started(run, cache, tmp_path)
    assert reloader.current is None
    assert "fewer than the model's 30 items" in str(reloader.problem)
    assert artifacts.existing() == artifacts


@pytest.mark.parametrize("by_onnx", [False, True])
def test_a_replaced_run_is_freed_without_the_garbage_collector(
    trained: Path, cache: ArtifactCache, tmp_path: Path, by_onnx: bool
) -> None:
    """The server excludes from garbage collection what it loads at the start, so that must have no cycles."""
    reloader = RunReloader(trained, "cpu", cache if by_onnx else None, Metrics(tmp_path))
    reloader.start()
    assert reloader.current is not None
    recommender = reloader.current.recommender
    recommender.recommend(["i3"])
    first = [weakref.ref(one) for one in (recommender, recommender.run.model, recommender.ranker)]
    del recommender
    gc.collect()
    gc.disable()
    try:
        reloader.take_over("replaced")
        assert [one() for one in first] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize(("workers", "threads"), [(1, 4), (2, 2), (8, 1)])
def test_a_worker_searches_a_large_catalogue_with_its_share_of_the_cores(
    trained: Path, monkeypatch: pytest.MonkeyPatch, workers: int, threads: int
) -> None:
    monkeypatch.setattr("posrec.server.service.usable_cores", lambda: 5)
    monkeypatch.setattr("posrec.recommend.rounded.CACHED", 0)
    service = Service(ServerSettings(str(trained), onnx=False, index=IndexSettings("exact"), workers=workers))
    (reloader,) = service.reloaders
    reloader.start()
    assert reloader.current is not None
    search = reloader.current.recommender.ranker.finder.search  # type: ignore[attr-defined]
    assert search.rounded.session.get_session_options().intra_op_num_threads == threads


def test_a_build_that_can_t_be_started_is_done_without(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("posrec.recommend.artifacts.subprocess.Popen", fail)
    reloader = started(trained, ArtifactCache(str(tmp_path / "empty")), tmp_path)
    assert (reloader.problem, reloader.build) == (None, None)
    assert used_by(reloader)[0] is False
