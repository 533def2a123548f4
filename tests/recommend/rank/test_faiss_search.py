"""The faiss index: its recall, its settings, its file, and that the server uses it once it is
built."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from posrec.errors import InputError
from posrec.nn.batch import SessionBatch
from posrec.recommend.rank.faiss_search import (
    FaissSearch,
    IndexSettings,
    build,
    likely_sessions,
    parse_index,
)
from posrec.recommend.rank.torch_model import TorchEncoder, item_table
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from tests.helpers import command, items_of, listed, refused
from tests.recommend.rank.test_own_items import clusters
from tests.server.server_process import serving

faiss = pytest.importorskip("faiss")
TABLE, SESSIONS = clusters(20_000)


def counted_recall(search: FaissSearch) -> float:
    """By sorting all scores."""
    hits = 0
    number = len(SESSIONS)
    found = search.search(SESSIONS, [20] * number, [None] * number)
    for session, best in zip(SESSIONS, found.best, strict=True):
        exact = np.argsort(-(TABLE @ session))[:20]
        hits += len(set(exact.tolist()) & set(best.columns.tolist()))
    return hits / (20 * len(SESSIONS))


def test_the_probes_follow_from_the_recall() -> None:
    probes = []
    for least in (0.5, 0.9, 0.995):
        settings = IndexSettings("faiss", recall=least, lists=128)
        search = build(TABLE, SESSIONS, settings)
        assert search.recall >= least
        assert search.recall == pytest.approx(counted_recall(search))
        probes.append(search.index.nprobe)
    assert probes == sorted(probes)
    assert probes[0] < probes[-1] <= 128


@pytest.mark.parametrize("items", [1, 2, 15, 16, 40])
def test_a_small_index_is_built_without_warnings(
    capfd: pytest.CaptureFixture[str], items: int
) -> None:
    """faiss would warn of each of the 32 parts of a vector."""
    table = np.random.default_rng(0).standard_normal((items, 32)).astype(np.float32)
    build(table, table[:10], IndexSettings("faiss"))
    assert capfd.readouterr() == ("", "")


def test_scores_are_exact_and_sorted_for_each_k() -> None:
    settings = IndexSettings("faiss", recall=1, lists=128, probes=1)
    search = build(TABLE, SESSIONS, settings)
    assert (search.index.nprobe, search.index.nlist) == (1, 128)
    assert search.recall < 1
    counts = [1, 7, 5000]  # more than one list holds
    found = search.search(SESSIONS[:3], counts, [None] * 3)
    for session, k, best in zip(SESSIONS, counts, found.best, strict=False):
        scores, columns = best
        assert len(set(columns.tolist())) == len(columns) == k
        assert np.allclose(scores, TABLE[columns] @ session, rtol=1e-5)
        assert (np.diff(scores) <= 0).all()
    # Every item was scored.
    assert columns.tolist() == np.argsort(-(TABLE @ SESSIONS[2]))[:5000].tolist()


def read_back(run: Run, path: Path) -> FaissSearch:
    """The index in a file, with its recall on likely sessions."""
    encoder = TorchEncoder(run.model)
    return parse_index(path.read_bytes(), path, item_table(run), run, encoder)


def test_an_exported_index_fits_its_run_only(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "items.faiss"
    settings = ("--set", "lists=4", "--set", "probes=4")
    done = command("export", trained, "--index", path, *settings)
    assert done.code == 0, done.err
    for words in ("4 of 4 lists", "is 1.0000"):
        assert words in done.out
    run = load_run(trained)
    by_faiss = Recommender(run, "cpu", search=read_back(run, path))
    assert (by_faiss.ranker.search.kind, by_faiss.ranker.search.recall) == (
        "faiss",
        1.0,
    )
    expected = Recommender(run, "cpu").recommend(["i3", "i4"], 5)
    assert items_of(by_faiss.recommend(["i3", "i4"], 5)) == items_of(expected)
    with pytest.raises(InputError, match=r"the index has 30 items .* the run has 31"):
        FaissSearch(np.zeros((31, 16), np.float32), faiss.read_index(str(path)))
    path.write_bytes(b"not an index")
    with pytest.raises(InputError, match="is not a faiss index"):
        read_back(run, path)


def test_likely_sessions_follow_the_clicks(trained: Path) -> None:
    """If all clicks are on one item, every session is one to five clicks on it."""
    run = load_run(trained)
    clicks = np.zeros(30, np.int64)
    clicks[6] = 10**12
    encoder = TorchEncoder(run.model)
    sessions = likely_sessions(replace(run, popularity=clicks), encoder)
    batch = SessionBatch.of([[7] * length for length in range(1, 6)])
    with torch.inference_mode():
        possible = run.model.session_vectors(batch).numpy()
    for session in sessions:
        assert np.isclose(session, possible, atol=1e-5).all(1).any()
    again = likely_sessions(run, encoder)
    assert np.array_equal(likely_sessions(run, encoder), again)
    assert item_table(run).shape == (30, 16)


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("trained", ["--set", "recall=2"], "recall must be above 0"),
        ("trained", ["--set", "lists=31"], "must be at most 30"),
        ("trained", ["--set", "nlist=3"], "did you mean 'lists'?"),
        ("counted", [], "pop has no item vectors"),
    ],
)
def test_what_can_t_be_indexed_is_an_input_error(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    run: str,
    options: list[str],
    message: str,
) -> None:
    asked = ("export", request.getfixturevalue(run), "--index", tmp_path / "x.faiss")
    assert message in refused(*asked, *options)
    assert listed(tmp_path) == []


@pytest.mark.process
def test_the_server_uses_the_index_of_the_run(trained_with_index: Path) -> None:
    rec = Recommender(load_run(trained_with_index), "cpu")
    with serving(trained_with_index, onnx=True) as server:
        about = server.ask("GET", "/v1/run").json()
        assert (about["search"], about["recall"]) == ("faiss", 1)
        items = server.recommend("i3", "i4", k=5).json()["items"]
    expected = items_of(rec.recommend(["i3", "i4"], 5))
    assert [item["item"] for item in items] == expected
