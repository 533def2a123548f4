"""`posrec encodings`: the table, the JSON, the runs it reads and the errors it reports."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.helpers import command

from posrec.encodings.theory import reason
from posrec.errors import InputError
from posrec.experiments.encodings import as_json, examine, load_trained_encoding
from posrec.io import save_tensors
from posrec.runs.folder import SCHEMA
from posrec.runs.run import finish_run

SMALL = ["--max-length", "9", "--dimensions", "8"]


def encodings(*options: object) -> str:
    done = command("encodings", *options)
    assert done.code == 0, done.err
    return done.out


def write_run(
    folder: Path,
    name: str = "ldpe",
    table: torch.Tensor | None = None,
    key: str = "encoding.table",
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"schema": SCHEMA, "model": "posrec", "encoding": name, "d": 6})
    )
    weights = (
        table
        if table is not None
        else torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    )
    write_weights(folder, **{key: weights, "items.weight": torch.zeros(2, 2)})
    finish_run(folder)
    return folder


def write_weights(folder: Path, **tensors: torch.Tensor) -> None:
    save_tensors(folder / "model.safetensors", tensors, {})


def test_json_has_every_scheme_with_what_was_found_and_what_the_paper_says() -> None:
    found = json.loads(encodings("--json", *SMALL))
    assert (
        " ".join(found)
        == "none spe rspe dpe aspe 2dspe lpe lrpe ldpe alpe 2dlpe rpe sum"
    )
    dpe = found["dpe"]
    assert (dpe["forward"], dpe["linear"]) == (True, True)
    assert (dpe["paper"]["forward"], dpe["paper"]["linear"]) == (True, None)
    assert dpe["evidence"]["forward"]["dimensions"] == [0, 1, 2, 3]
    assert (dpe["max_length"], dpe["d"]) == (9, 8)
    assert {name for name, entry in found.items() if entry["differs"]} == {
        "aspe",
        "2dspe",
    }
    assert found["sum"]["evidence"]["collision_within_length"]["lengths"] == [2, 2]


def test_the_table_marks_where_paper_and_definition_differ() -> None:
    lines = {
        line.split()[0]: line for line in encodings(*SMALL).splitlines() if line.strip()
    }
    assert lines["2dspe"].count("≠") == lines["aspe"].count("≠") == 1
    assert "yes ≠ no" in lines["2dspe"]
    assert "≠" not in lines["dpe"]
    assert lines["dpe"].split()[-2:] == ["0-3", "4-7"]
    assert "trivial" in lines["none"]


def test_the_theory_prints_its_brackets() -> None:
    assert "P[pos] =" in encodings("--theory", *SMALL)
    worked = json.loads(encodings("--theory", "--json", *SMALL))
    assert len([one["name"] for one in worked if not one["holds"]]) == 2


def test_a_run_is_examined_on_its_own_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tonight", key="readout.encoding.table")
    entry = json.loads(encodings("--json", "--run", run, *SMALL))[str(run)]
    assert entry["encoding"] == "ldpe"
    assert (entry["max_length"], entry["d"]) == (7, 6)
    assert entry["forward"]
    assert entry["evidence"]["forward"]["dimensions"] == [0, 1, 2]


def test_the_table_of_a_run_is_the_one_that_was_saved(tmp_path: Path) -> None:
    """A run whose first two rows are the same can't tell positions 0 and 1 apart."""
    table = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    table[1] = table[0]
    (row,) = examine(
        9, 8, [load_trained_encoding(write_run(tmp_path / "run", "lpe", table))]
    )[-1:]
    assert not row.analysis.forward.holds
    assert row.analysis.forward.collision is not None
    assert sorted(row.analysis.forward.collision.positions) == [0, 1]
    assert as_json(row)["differs"] == ["forward", "unique_within_length"]
    assert "position 0 of length 1 and position 1 of length 2" in reason(
        row.analysis, "forward"
    )
    assert "position 0 of length 2 and position 1 of length 2" in reason(
        row.analysis, "unique_within_length"
    )


def write_config(text: str) -> Callable[[Path], object]:
    return lambda run: (run / "config.json").write_text(text)


DAMAGED = {
    "config.json names no encoding": write_config(
        f'{{"schema": {SCHEMA}, "model": "pop"}}'
    ),
    "encoding 'dpe', which has no learned table": write_config(
        f'{{"schema": {SCHEMA}, "model": "posrec", "encoding": "dpe"}}'
    ),
    "one weight `encoding.table`, found none": lambda run: write_weights(
        run, **{"other_encoding.table": torch.ones(2, 2)}
    ),
    "found ['a.encoding.table', 'b.encoding.table']": lambda run: write_weights(
        run,
        **{
            "a.encoding.table": torch.zeros(2, 2),
            "b.encoding.table": torch.zeros(2, 2),
        },
    ),
    "has shape (1, 4)": lambda run: write_weights(
        run, **{"encoding.table": torch.zeros(1, 4)}
    ),
    "not finite": lambda run: write_weights(
        run, **{"encoding.table": torch.full((3, 4), torch.nan)}
    ),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_a_damaged_run_is_reported_in_one_line(tmp_path: Path, message: str) -> None:
    run = write_run(tmp_path / "run")
    load_trained_encoding(run)
    DAMAGED[message](run)
    finish_run(run)
    with pytest.raises(InputError) as error:
        load_trained_encoding(run)
    assert message in str(error.value)
    assert str(run) in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_input_exits_with_2(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for options in (
        ("--run", tmp_path / "nowhere"),
        ("--dimensions", 1),
        ("--max-length", 1),
        ("--theory", "--run", run),
    ):
        assert command("encodings", *options).code == 2
