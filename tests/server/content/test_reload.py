"""Runs and rule files that are replaced, overwritten, damaged or fixed while they are served."""

import asyncio
import errno
import gc
import os
import shutil
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from posrec.io import changing
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import EXPORT, ITEMS, NETWORK
from posrec.runs.run import load_run
from posrec.server.content import reload as module
from posrec.server.content.reload import (
    LoadedRun,
    RunReloader,
    ShopFiles,
    file_stamp,
    is_half_imported,
)
from posrec.server.metrics import Metrics
from posrec.server.service import Service
from posrec.server.settings import ServeOptions
from tests.helpers import items_of, slowly, update_checksums
from tests.recommend.export.test_opening import USELESS
from tests.server.asgi import in_process
from tests.server.asking import Asker
from tests.server.server_process import serving, until

pytest.importorskip("onnxruntime")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def started(run: Path, folder: Path) -> RunReloader:
    settings = ServeOptions((str(run),))
    metrics = Metrics(folder, ["run"])
    reloader = RunReloader(run, "run", settings, metrics, ShopFiles(settings))
    reloader.replace_current()
    return reloader


@pytest.mark.parametrize("name", EXPORT)
def test_a_run_with_a_damaged_export_is_refused_and_the_one_before_stays(
    trained_with_index: Path, tmp_path: Path, name: str
) -> None:
    run = Path(shutil.copytree(trained_with_index, tmp_path / "run"))
    reloader = started(run, tmp_path)
    before = reloader.current
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[:-100])
    reloader.replace_current()
    assert str(run / name) in str(reloader.problem)
    assert reloader.current is before is not None
    assert len(before.recommender.recommend(["i3"], 5)) == 5
    update_checksums(run)  # as if it had been written like this
    reloader.replace_current()
    assert reloader.problem is not None
    (run / name).write_bytes(content)
    update_checksums(run)
    reloader.replace_current()
    assert reloader.problem is None
    assert reloader.current is not before


@pytest.mark.usefixtures("frequent_polls")
def test_a_run_that_could_not_be_loaded_for_lack_of_files_is_tried_again(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    attempts = iter(range(1, 4))
    load = RunReloader.load

    def load_at_the_third_attempt(self: RunReloader) -> LoadedRun:
        if next(attempts) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return load(self)

    monkeypatch.setattr(RunReloader, "load", load_at_the_third_attempt)
    reloader = started(trained, tmp_path)
    assert reloader.current is None

    async def watch() -> None:
        watching = asyncio.create_task(reloader.watch())
        while reloader.problem is not None:
            await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(asyncio.wait_for(watch(), 120))
    assert reloader.current is not None
    levels = [record.levelname for record in caplog.records]
    assert levels.count("ERROR") == 1  # the second attempt says nothing new


def test_an_import_that_failed_half_way_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import package_of_a_test.part\nraise OSError(24, 'Too many open files')\n"
    )
    (package / "part.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_half_imported("package_of_a_test")
    with pytest.raises(OSError, match="Too many open files"):
        import_module("package_of_a_test")
    assert is_half_imported("package_of_a_test")
    assert not is_half_imported("torch")


@pytest.mark.parametrize("by_onnx", [False, True])
def test_a_replaced_run_is_freed_without_the_garbage_collector(
    trained: Path, trained_with_index: Path, tmp_path: Path, by_onnx: bool
) -> None:
    """The server excludes what it loads at the start from garbage collection."""
    reloader = started(trained_with_index if by_onnx else trained, tmp_path)
    assert reloader.current is not None
    recommender = reloader.current.recommender
    recommender.recommend(["i3"])
    objects = (recommender, recommender.run.model, recommender.ranker)
    references = [weakref.ref(loaded) for loaded in objects]
    del recommender, objects
    gc.collect()
    gc.disable()
    try:
        reloader.replace_current()
        assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize(("workers", "threads"), [(1, 4), (2, 2), (8, 1)])
def test_a_worker_searches_a_large_catalogue_with_its_share_of_the_cores(
    trained: Path, monkeypatch: pytest.MonkeyPatch, workers: int, threads: int
) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 5)
    for limit in ("exact_search.CACHED", "rounded_items.FEWEST_ITEMS"):
        monkeypatch.setattr(f"posrec.recommend.rank.{limit}", 0)
    service = Service(ServeOptions((str(trained),), onnx=False, workers=workers))
    (reloader,) = service.reloaders
    reloader.replace_current()
    assert reloader.current is not None
    search = reloader.current.recommender.ranker.search
    assert isinstance(search, ExactSearch)
    assert search.rounded is not None
    assert search.rounded.session.get_session_options().intra_op_num_threads == threads


def best(server: Asker) -> list[str]:
    return server.recommend("i3", "i4", k=5).items


def all_items(server: Asker) -> set[str]:
    return set(server.recommend("i3", k=100).items)


def best_in_python(run: Path) -> list[str]:
    return items_of(Recommender(load_run(run), "cpu").recommend(["i3", "i4"], 5))


@pytest.fixture
def renumbered(run: Path, tmp_path: Path) -> Path:
    """The same run with its items in another order.

    Its weights with the vocabulary of `run` would name wrong items.
    """
    import torch

    opened = load_run(run)
    order = torch.arange(30).flip(0)
    ids = [opened.vocabulary.ids[row] for row in order.tolist()]
    opened.vocabulary.__init__(ids, {})  # type: ignore[misc]
    model: Any = opened.model
    with torch.no_grad():
        table = model.embedding.vectors()
        table.copy_(table[order])
    Recommender(opened, "cpu").save(tmp_path / "renumbered", export=False)
    return tmp_path / "renumbered"


@pytest.mark.usefixtures("frequent_polls")
def test_a_run_overwritten_in_place_never_gives_an_answer_of_two_runs(
    run: Path, renumbered: Path
) -> None:
    expected = best_in_python(run)
    assert best_in_python(renumbered) == expected
    new_files = sorted(renumbered.iterdir())

    def is_incomplete() -> bool:
        return any("checksums.json" in reason for reason in server.refusals())

    with in_process(run) as server:
        for copied, file in enumerate(new_files, start=1):
            (run / file.name).write_bytes(file.read_bytes())
            if copied == 3:
                until(is_incomplete)
            assert best(server) == expected
        for file in run.iterdir():
            if not (renumbered / file.name).exists():
                file.unlink()
        until(lambda: server.metric("posrec_reloads_total") >= 1)
        assert best(server) == expected


@pytest.mark.usefixtures("frequent_polls")
def test_a_link_to_another_run_is_followed(
    run: Path, counted: Path, tmp_path: Path
) -> None:
    current = tmp_path / "current"
    current.symlink_to(run)
    with in_process(current) as server:
        assert server.get("/v1/run").json()["model"] == "posrec"
        (tmp_path / "next").symlink_to(counted)
        (tmp_path / "next").rename(current)
        until(lambda: server.get("/v1/run").json()["model"] == "pop")
        assert server.refusals() == []


@pytest.mark.usefixtures("frequent_polls")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of its weights
def test_a_useless_run_is_refused_and_the_old_one_stays(
    run: Path, trained: Path
) -> None:
    with in_process(run) as server:
        before = best(server)
        os.truncate(run / "model.safetensors", 0)
        until(server.refusals)
        assert best(server) == before
        assert server.metric("posrec_failed_reloads_total") >= 1
        for damage, reason in USELESS.values():
            earlier = len(server.refusals())

            def is_refused(reason: str = reason, earlier: int = earlier) -> bool:
                return any(reason in refusal for refusal in server.refusals()[earlier:])

            shutil.copytree(trained, run, dirs_exist_ok=True)
            damage(run)
            update_checksums(run)
            until(is_refused)
            assert best(server) == before


@pytest.mark.usefixtures("frequent_polls")
@pytest.mark.parametrize(
    "name", ["config.json", "popularity.npy", slowly("metrics.json")]
)
def test_a_server_started_on_a_damaged_run_serves_it_once_it_is_fixed(
    run: Path, name: str
) -> None:
    good = (run / name).read_bytes()
    (run / name).write_bytes(b"damaged")
    with in_process(run) as server:
        answer = server.get("/readyz")
        assert answer.status == 503
        assert str(run) not in answer.body.decode()
        (run / name).write_bytes(good)
        until(lambda: server.get("/readyz").status == 200)


def test_rule_files_are_read_again_and_stay_with_a_new_run(
    run: Path, counted: Path, tmp_path: Path
) -> None:
    deny = tmp_path / "deny.txt"
    allow = tmp_path / "allow.txt"
    deny.write_text("i5\n\nnonsense\n")
    allow.write_text("".join(f"i{n}\n" for n in range(20)))
    with serving(run, "--deny-file", deny, "--allow-file", allow) as server:
        allowed = {f"i{n}" for n in range(20) if n != 5}
        assert all_items(server) == allowed
        pinned = server.recommend(k=100, pin=["i5", "i25"])
        assert set(pinned.items) == allowed
        assert "i5" not in server.get("/v1/similar/i3?k=100").items
        deny.write_text("".join(f"i{n}\n" for n in range(10)))
        until(lambda: len(all_items(server)) == 10)
        allow.unlink()  # it can't be read: what was read before stays
        failure = f"{allow} could not be read again; what was read before stays"
        until(lambda: server.logged(failure))
        assert len(all_items(server)) == 10
        allow.write_text("".join(f"i{n}\n" for n in range(5, 15)))
        until(lambda: all_items(server) == {f"i{n}" for n in range(10, 15)})
        run.rename(tmp_path / "aside")
        shutil.copytree(counted, run)
        until(lambda: server.get("/v1/run").json()["model"] == "pop")
        assert all_items(server) == {f"i{n}" for n in range(10, 15)}


@pytest.mark.usefixtures("frequent_polls")
def test_a_rule_file_that_lost_most_of_its_ids_or_became_a_pipe_is_refused(
    run: Path, tmp_path: Path
) -> None:
    """Nobody writes to the pipe, and neither the watcher nor the stop waits for it."""
    deny = tmp_path / "deny.txt"
    deny.write_text("i5\ni6\ni7\n")

    def refused(keyword: str) -> bool:
        return any(keyword in line.get("reason", "") for line in server.log)

    with in_process(run, deny_file=str(deny)) as server:
        deny.write_text("")
        until(lambda: refused("0 ids"))
        deny.write_text("i5\ni5\ni5\nzz\nzz\n")  # one id that the run knows
        until(lambda: refused("1 id "))
        deny.unlink()
        os.mkfifo(deny)
        until(lambda: refused("not a regular file"))
        assert not {"i5", "i6", "i7"} & all_items(server)
        deny.unlink()
        deny.write_text("i5\ni6\n")
        until(lambda: "i7" in all_items(server))


@pytest.mark.usefixtures("frequent_polls")
def test_ids_of_a_rule_file_that_the_run_does_not_know_are_logged(
    run: Path, tmp_path: Path
) -> None:
    deny = tmp_path / "deny.txt"
    deny.write_bytes(b'\xef\xbb\xbfi5\r\n"i6"\r\n')

    def has_zero_bytes() -> bool:
        return any("zero bytes" in line.get("reason", "") for line in server.log)

    with in_process(run, deny_file=str(deny)) as server:
        assert {"i5", "i6"} & all_items(server) == {"i6"}
        (note,) = [line for line in server.log if "1 of 2 ids" in line["message"]]
        assert note["level"] == "warning"
        deny.write_bytes("i7\n".encode("utf-16-le"))  # the rules before stay
        until(has_zero_bytes)
        assert "i5" not in all_items(server)


def test_permissions_are_a_change_of_a_rule_file(tmp_path: Path) -> None:
    (tmp_path / "deny.txt").write_text("i5\n")
    before = file_stamp(tmp_path / "deny.txt")
    (tmp_path / "deny.txt").chmod(0o400)
    assert file_stamp(tmp_path / "deny.txt") != before


@pytest.mark.usefixtures("frequent_polls")
def test_an_export_that_is_added_takes_over(
    run: Path, trained_with_export: Path
) -> None:
    with in_process(run, onnx=True) as server:
        assert [line["by"] for line in server.logged("serving")] == ["torch"]
        with changing(run, *EXPORT):
            for name in (NETWORK, ITEMS):
                shutil.copy(trained_with_export / name, run / name)
        until(lambda: server.logged("serving")[-1]["by"] == "onnx")
        assert best(server) == best_in_python(run)
        advice = f"posrec export {run}"
        assert sum(advice in line["message"] for line in server.log) == 1
