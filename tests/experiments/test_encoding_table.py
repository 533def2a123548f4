"""`posrec encodings`: the table, the JSON, the runs it reads and the errors it reports."""

import json
from pathlib import Path

import pytest
import torch

from posrec.encodings.theory import reason
from posrec.errors import InputError
from posrec.experiments.encodings import as_json, examine, load_trained_encoding
from posrec.io import save_tensors
from posrec.runs.folder import SCHEMA
from posrec.runs.run import finish_run
from tests.helpers import command

SMALL = ["--max-length", "9", "--dimensions", "8"]


def encodings(*options: object) -> str:
    done = command("encodings", *options)
    assert done.code == 0, done.err
    return done.out


def write_config(folder: Path, **config: object) -> None:
    (folder / "config.json").write_text(json.dumps({"schema": SCHEMA, **config}))


def write_run(
    folder: Path,
    name: str = "ldpe",
    table: torch.Tensor | None = None,
    key: str = "encoding.table",
) -> Path:
    folder.mkdir()
    write_config(folder, model="posrec", encoding=name, d=6)
    weights = random_table() if table is None else table
    write_weights(folder, {key: weights, "items.weight": torch.zeros(2, 2)})
    finish_run(folder)
    return folder


def random_table() -> torch.Tensor:
    return torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


def write_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_tensors(folder / "model.safetensors", tensors, {})


def test_json_has_every_scheme_with_what_was_found_and_what_the_paper_says() -> None:
    entries = json.loads(encodings("--json", *SMALL))
    names = "none spe rspe dpe aspe 2dspe lpe lrpe ldpe alpe 2dlpe rpe sum"
    assert " ".join(entries) == names
    dpe = entries["dpe"]
    assert (dpe["forward"], dpe["linear"]) == (True, True)
    assert (dpe["paper"]["forward"], dpe["paper"]["linear"]) == (True, None)
    assert dpe["evidence"]["forward"]["dimensions"] == [0, 1, 2, 3]
    assert (dpe["max_length"], dpe["d"]) == (9, 8)
    differing = {name for name, entry in entries.items() if entry["differs"]}
    assert differing == {"aspe", "2dspe"}
    assert entries["sum"]["evidence"]["collision_within_length"]["lengths"] == [2, 2]


def test_the_table_marks_where_paper_and_definition_differ() -> None:
    printed = encodings(*SMALL).splitlines()
    lines = {line.split()[0]: line for line in printed if line.strip()}
    assert lines["2dspe"].count("≠") == lines["aspe"].count("≠") == 1
    assert "yes ≠ no" in lines["2dspe"]
    assert "≠" not in lines["dpe"]
    assert lines["dpe"].split()[-2:] == ["0-3", "4-7"]
    assert "trivial" in lines["none"]


def test_the_theory_prints_its_brackets() -> None:
    assert "P[pos] =" in encodings("--theory", *SMALL)
    statements = json.loads(encodings("--theory", "--json", *SMALL))
    assert [statement["holds"] for statement in statements].count(False) == 2


def test_a_run_is_examined_on_its_own_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tonight", key="readout.encoding.table")
    entry = json.loads(encodings("--json", "--run", run, *SMALL))[str(run)]
    assert entry["encoding"] == "ldpe"
    assert (entry["max_length"], entry["d"]) == (7, 6)
    assert entry["forward"]
    assert entry["evidence"]["forward"]["dimensions"] == [0, 1, 2]


def test_the_table_of_a_run_is_the_one_that_was_saved(tmp_path: Path) -> None:
    """A run whose first two rows are the same can't tell positions 0 and 1 apart."""
    table = random_table()
    table[1] = table[0]
    trained = load_trained_encoding(write_run(tmp_path / "run", "lpe", table))
    row = examine(9, 8, [trained])[-1]
    analysis = row.analysis
    assert not analysis.forward.holds
    assert analysis.forward.collision is not None
    assert sorted(analysis.forward.collision.positions) == [0, 1]
    assert as_json(row)["differs"] == ["forward", "unique_within_length"]
    across = "position 0 of length 1 and position 1 of length 2"
    assert across in reason(analysis, "forward")
    within = "position 0 of length 2 and position 1 of length 2"
    assert within in reason(analysis, "unique_within_length")


def test_a_run_without_a_learned_encoding_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for config, message in (
        ({"model": "pop"}, r"config.json names no encoding"),
        ({"model": "posrec", "encoding": "dpe"}, "'dpe', which has no learned table"),
    ):
        write_config(run, **config)
        finish_run(run)
        with pytest.raises(InputError, match=message):
            load_trained_encoding(run)


TABLE = torch.zeros(2, 2)
DAMAGED = {
    "one weight `encoding.table`, found none": {"other_encoding.table": TABLE},
    "found ['a.encoding.table', 'b.encoding.table']": {
        "a.encoding.table": TABLE,
        "b.encoding.table": TABLE,
    },
    "has shape (1, 4)": {"encoding.table": torch.zeros(1, 4)},
    "not finite": {"encoding.table": torch.full((3, 4), torch.nan)},
}


@pytest.mark.parametrize("message", DAMAGED)
def test_damaged_weights_are_reported_in_one_line(tmp_path: Path, message: str) -> None:
    run = write_run(tmp_path / "run")
    write_weights(run, DAMAGED[message])
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
