"""Processes that run the same experiment into the same folder share its cells."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import SOURCE, RecordingProgress, chain_shop, listed

from posrec.data.dataset import PreparedDataset
from posrec.experiments.reproduce import jobs as cells
from posrec.experiments.reproduce import locks as sharing
from posrec.experiments.reproduce.jobs import Cell, Outcome, run_cells, saved
from posrec.experiments.reproduce.locks import taken

TINY = {"d": 8, "epochs": 2, "batch_size": 64}
CELLS = [Cell("shop", "posrec", TINY, seed) for seed in range(5)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return chain_shop(tmp_path_factory.mktemp("sharing"), seed=1)


def test_what_one_has_taken_the_other_has_not(tmp_path: Path) -> None:
    with taken(tmp_path / "a.lock") as first, taken(tmp_path / "a.lock") as second, taken(tmp_path / "b.lock") as other:
        assert (first, second, other) == (True, False, True)
    assert listed(tmp_path) == []
    (tmp_path / "a.lock").touch()  # as a killed process leaves it
    with taken(tmp_path / "a.lock") as again:
        assert again
    with pytest.raises(ZeroDivisionError), taken(tmp_path / "a.lock"):
        raise ZeroDivisionError
    assert listed(tmp_path) == []


def test_a_file_that_was_removed_before_it_was_locked_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had it before removes it between this process's opening and locking; a third one has made it anew."""

    def late(handle: int) -> bool:
        (tmp_path / "a.lock").unlink()
        (tmp_path / "a.lock").touch()
        return True

    monkeypatch.setattr(sharing, "locked", late)
    with taken(tmp_path / "a.lock") as mine:
        assert not mine
    assert listed(tmp_path) == ["a.lock"]  # the third one's stays


def test_a_cell_that_another_process_runs_is_passed_over_and_told(shop: PreparedDataset, tmp_path: Path) -> None:
    pop, spop = Cell("shop", "pop"), Cell("shop", "spop")
    heard = RecordingProgress()
    with taken(tmp_path / "shop_pop_seed-0.lock"):
        outcomes = run_cells([pop, spop], {"shop": shop}, tmp_path, "cpu", progress=heard)
    assert set(outcomes) == {spop.name}
    assert heard.messages[-1] == "1 of 2 cells were left to other processes"
    assert set(run_cells([pop, spop], {"shop": shop}, tmp_path, "cpu")) == {pop.name, spop.name}


def test_the_time_left_is_shared_too(shop: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two others run, and one has ended a cell meanwhile: four of a minute each are ahead, for three processes."""
    todo = [Cell("shop", "pop", {}, seed) for seed in range(6)]

    def a_minute(cell: Cell, data: PreparedDataset, folder: Path, *_: object) -> Outcome:
        return Outcome(cell, {"total_seconds": 60, "metrics": {"recall@10": 1.0, "mrr@10": 1.0}}, folder)

    def an_end_elsewhere(cell: Cell, *rest: object) -> Outcome:
        (tmp_path / "shop_pop_seed-5.json").write_text("{}")
        monkeypatch.setattr(cells, "run_cell", a_minute)
        return a_minute(cell, *rest)

    monkeypatch.setattr(cells, "run_cell", an_end_elsewhere)
    monkeypatch.setattr(cells, "saved", lambda _: {})
    heard = RecordingProgress()
    with taken(tmp_path / "shop_pop_seed-1.lock"), taken(tmp_path / "shop_pop_seed-2.lock"):
        run_cells(todo, {"shop": shop}, tmp_path, "cpu", progress=heard)
    left = [sentence.rpartition("; ")[2] for sentence in heard.messages if " of 6: " in sentence]
    assert left == ["about 80 s left", "about 20 s left", "about 0 s left"]


def test_every_cell_is_run_once(shop: PreparedDataset, tmp_path: Path) -> None:
    code = f"""
import json, sys
from pathlib import Path
from posrec.data.dataset import load
from posrec.experiments.reproduce import jobs as cells
data, folder = load(sys.argv[1]), Path(sys.argv[2])
real, ran = cells.run_cell, []
cells.run_cell = lambda cell, *rest: ran.append(cell.seed) or real(cell, *rest)
print("ready", flush=True)
sys.stdin.readline()
todo = [cells.Cell("shop", "posrec", {TINY}, seed) for seed in range({len(CELLS)})]
cells.run_cells(todo, {{"shop": data}}, folder, "cpu")
print(json.dumps(ran))
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", code, str(shop.path), str(tmp_path / "cells")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    both = [subprocess.Popen(line, env=environment, text=True, **pipes) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in both:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ran = [json.loads(process.communicate(timeout=240)[0]) for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert sorted(ran[0] + ran[1]) == [cell.seed for cell in CELLS]
    assert set(saved(tmp_path / "cells")) == {cell.name for cell in CELLS}
    assert not [name for name in listed(tmp_path / "cells") if name.endswith(".lock")]


def test_a_cell_that_ends_while_others_are_read_is_not_run_again(
    shop: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop = Cell("shop", "pop")
    read, run, ran = cells.saved, cells.run_cell, []

    def another_ends_meanwhile(folder: Path) -> dict[str, Outcome]:
        seen = read(folder)
        if not seen:
            run(pop, shop, folder, "cpu")
        return seen

    monkeypatch.setattr(cells, "saved", another_ends_meanwhile)
    monkeypatch.setattr(cells, "run_cell", lambda cell, *rest: ran.append(cell) or run(cell, *rest))
    assert set(run_cells([pop], {"shop": shop}, tmp_path, "cpu")) == {pop.name}
    assert ran == []
