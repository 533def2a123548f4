"""Loading a run to serve it, and replacing it."""

import gc
import shutil
import weakref
from pathlib import Path

import pytest

from posrec.runs.folder import EXPORT
from posrec.server.live.reload import RunReloader
from posrec.server.metrics import Metrics
from posrec.server.service import Service
from posrec.server.settings import ServerSettings
from tests.helpers import update_checksums

pytest.importorskip("onnxruntime")


def started(run: Path, folder: Path) -> RunReloader:
    reloader = RunReloader(run, "cpu", use_export=True, metrics=Metrics(folder))
    reloader.start()
    return reloader


@pytest.mark.parametrize("name", EXPORT)
@pytest.mark.parametrize("damage", [b"", b"no such thing", None], ids=["empty", "other", "cut"])
def test_a_run_with_a_damaged_export_is_refused_and_the_one_before_stays(
    trained_with_index: Path, tmp_path: Path, name: str, damage: bytes | None
) -> None:
    run = Path(shutil.copytree(trained_with_index, tmp_path / "run"))
    reloader = started(run, tmp_path)
    before = reloader.current
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[:-100] if damage is None else damage)
    reloader.take_over("replaced on disk")
    assert f"{run / name} does not match checksums.json" in str(reloader.problem)
    assert reloader.current is before is not None
    assert len(before.recommender.recommend(["i3"], 5)) == 5
    update_checksums(run)  # as if it had been written like this
    reloader.take_over("replaced on disk")
    assert reloader.problem is not None
    (run / name).write_bytes(content)
    update_checksums(run)
    reloader.take_over("replaced on disk")
    assert reloader.problem is None
    assert reloader.current is not before


@pytest.mark.parametrize("by_onnx", [False, True])
def test_a_replaced_run_is_freed_without_the_garbage_collector(
    trained: Path, trained_with_index: Path, tmp_path: Path, by_onnx: bool
) -> None:
    """The server excludes from garbage collection what it loads at the start, so that must have no cycles."""
    reloader = started(trained_with_index if by_onnx else trained, tmp_path)
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
    monkeypatch.setattr("posrec.recommend.rank.exact_search.CACHED", 0)
    service = Service(ServerSettings(str(trained), onnx=False, workers=workers))
    (reloader,) = service.reloaders
    reloader.start()
    assert reloader.current is not None
    search = reloader.current.recommender.ranker.search  # type: ignore[attr-defined]
    assert search.rounded.session.get_session_options().intra_op_num_threads == threads
