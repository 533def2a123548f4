"""The small archive: what it keeps, that a report is rebuilt from it, and what is refused."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from tests.experiments.reproduce.test_reproducing_docs import drawn_job
from tests.helpers import chain_shop, listed

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.experiments.reproduce import archive as module
from posrec.experiments.reproduce import jobs, report
from posrec.experiments.reproduce.archive import KEPT, pack, similar_beside_each_other, unpack
from posrec.experiments.reproduce.run import jobs_folder, reproduce
from posrec.experiments.reproduce.saved_results import WORST, Job, load_results, path_of, write_arrays


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return chain_shop(tmp_path_factory.mktemp("archive"), seed=1, sessions=200)


@pytest.fixture
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are drawn instead of trained for, and the report has no figures."""
    monkeypatch.setattr(jobs, "run_job", drawn_job)
    monkeypatch.setattr(report, "panels", lambda _: ([], ""))
    monkeypatch.setattr(report, "encoding_pictures", lambda _: [])


def test_it_keeps_records_ranks_up_to_10_and_the_encodings_that_are_drawn(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    wanted = [Job(name, "posrec", settings, seed) for name in ("one", "two") for seed in (0, 1)
              for settings in ({}, {"anchors": False})]  # fmt: skip
    table = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    for job in wanted:
        result = drawn_job(job, shop, full)
        if job.seed == 0:
            write_arrays(result.path.with_suffix(".npz"), {"ranks": result.ranks(), "encoding": table})
    failed = Job("one", "pop")
    path_of(failed, full).write_text(json.dumps({**load_results(full)[wanted[0].name].record, "model": "pop",
                                                 "error": "out of memory"}))  # fmt: skip
    pack(full, tmp_path / "jobs.npz.xz")
    assert unpack(tmp_path / "jobs.npz.xz", tmp_path / "again") == set(listed(full)) == set(listed(tmp_path / "again"))
    before, after = load_results(full), load_results(tmp_path / "again")
    assert after[failed.name].error == "out of memory"
    for job in wanted:
        assert after[job.name].record == {**before[job.name].record, "ranks_kept": KEPT}
        ranks = before[job.name].ranks()
        assert after[job.name].ranks().tolist() == np.where(ranks > KEPT, WORST, ranks).tolist()
        kept = after[job.name].encoding()
        drawn = job.seed == 0 and not job.settings
        assert (kept is not None) == drawn
        assert kept is None or (kept == table).all()


@pytest.mark.usefixtures("_drawn")
def test_the_report_is_rebuilt_from_it(shop: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "jobs.npz.xz"
    reproduce("all", [shop.path], tmp_path / "first", seeds=2, archive=archive)
    written, packed = archive.stat().st_mtime_ns, archive.read_bytes()
    monkeypatch.setattr(module, "pack", None)
    results = reproduce("all", [shop.path], tmp_path / "again", minutes=0, seeds=2, archive=archive)
    assert results.missing == 0
    for name in ("report.html", "report.md", "summary.json"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "first" / name).read_text()
    assert (archive.stat().st_mtime_ns, archive.read_bytes()) == (written, packed)  # nothing new: left as it is


@pytest.mark.usefixtures("_drawn")
def test_a_folder_of_an_earlier_version_is_used(shop: PreparedDataset, tmp_path: Path) -> None:
    assert jobs_folder(tmp_path) == tmp_path / "jobs"
    reproduce("plug-in", [shop.path], tmp_path, seeds=1)
    (tmp_path / "jobs").rename(tmp_path / "cells")
    results = reproduce("plug-in", [shop.path], tmp_path, seeds=1, minutes=0)
    assert (len(results.job_results), results.missing) == (4, 0)
    assert jobs_folder(tmp_path) == tmp_path / "cells"
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("content", [b"no xz", lzma.compress(b"no npz")])
def test_a_damaged_one_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "jobs.npz.xz").write_bytes(content)
    with pytest.raises(InputError, match=r"jobs\.npz\.xz can't be read as an archive of job results"):
        unpack(tmp_path / "jobs.npz.xz", tmp_path / "jobs")


def test_similar_jobs_stand_beside_each_other() -> None:
    ranks = np.repeat(np.array([[1], [9], [1], [9]], np.uint8), 70, axis=1)
    assert similar_beside_each_other(ranks) == [0, 2, 1, 3]
