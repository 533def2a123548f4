"""Opening a run folder: it has the clicks of its items, and files that belong together."""

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from posrec.errors import InputError
from posrec.io import FolderReader, changing, write_json
from posrec.recommend.recommender import open_recommender
from posrec.runs.folder import EXPORT, METRICS, POPULARITY, read_run
from posrec.runs.run import load_run
from posrec.server.content.reload import run_stamp
from tests.helpers import update_checksums


@pytest.fixture
def run(trained_with_export: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_with_export, tmp_path / "run"))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "absent": (Path.unlink, "is not listed"),
    "not numpy": (lambda path: path.write_bytes(b"\x93NUMPY rubbish"), "can't be read"),
    "of other items": (lambda path: np.save(path, np.zeros(3)), "does not fit"),
    "not numbers": (
        lambda path: np.save(path, np.full(30, np.nan)),
        "does not hold the numbers",
    ),
}


@pytest.mark.parametrize("open_run", [load_run, open_recommender])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_without_the_clicks_of_its_items_is_refused(
    run: Path, damage: str, open_run: Callable[[Path], Any]
) -> None:
    apply, message = DAMAGES[damage]
    apply(run / POPULARITY)
    update_checksums(run)  # its files belong together: only what they hold is wrong
    with pytest.raises(InputError, match=rf"popularity\.npy {message}"):
        open_run(run)


def test_a_run_is_opened_before_or_after_files_are_replaced_but_not_in_between(
    run: Path,
) -> None:
    opened = []
    reader = Thread(target=lambda: opened.append(open_recommender(run)))
    with changing(run, *EXPORT):  # meanwhile checksums.json does not list the export
        reader.start()
        reader.join(1)
        assert opened == []
    reader.join()
    assert opened[0].uses_onnx


def test_a_run_whose_files_are_replaced_while_it_is_read_is_read_again(
    run: Path,
) -> None:
    attempts = []

    def read(reader: FolderReader, _: dict[str, Any]) -> Any:
        attempts.append(reader)
        if len(attempts) == 1:
            with changing(run, METRICS):
                write_json(run / METRICS, {"new": 1})
        return reader.json(METRICS)

    assert read_run(run, read) == {"new": 1}
    assert len(attempts) == 2


def test_a_server_that_watches_the_run_waits_until_files_are_replaced(
    run: Path,
) -> None:
    before = run_stamp(run)
    assert before is not None
    with changing(run, *EXPORT):
        assert run_stamp(run) is None
    after = run_stamp(run)
    assert after is not None
    assert after != before
