"""docs/reliability.md shows what results/faults.json has."""

import json
import re

from tests.helpers import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
PARTS = json.loads((ROOT / "results" / "faults.json").read_text(encoding="utf-8"))["parts"]


def rows() -> dict[str, list[str]]:
    table = PAGE.split("## What was run\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \|(.*)\|$", table, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def test_steps_and_failures_are_those_of_the_results() -> None:
    assert set(rows()) == set(PARTS)
    for name, part in PARTS.items():
        steps = part["requests"] if name in ("overload", "soak") else part["done"]
        failed = {"overload": "dropped", "soak": "errors"}.get(name, "failed")
        assert rows()[name][:2] == [f"{steps:,}", f"{part[failed]:,}"], name


def test_latencies_are_those_of_the_results() -> None:
    for name, part in (("overload", PARTS["overload"]["middle_round"]), ("soak", PARTS["soak"])):
        for percentile in ("p50", "p99"):
            assert f"{percentile} {part[f'{percentile}_ms']:,.0f} ms" in rows()[name][2]


def test_the_rounds_of_overload_are_those_of_the_results() -> None:
    overload = PARTS["overload"]
    assert f"{overload['answered']:,} answered" in rows()["overload"][2]
    assert (
        f"from {overload['p99_ms_of_rounds'][0]:.0f} to {overload['p99_ms_of_rounds'][-1]:.0f} ms"
        in rows()["overload"][2]
    )


def test_the_memory_of_the_soak_is_that_of_the_results() -> None:
    memory = [sample["memory_mb"] for sample in PARTS["soak"]["series"]]
    assert f"from {memory[0]:,.0f} to {memory[-1]:,.0f} MB" in rows()["soak"][2]
    assert (ROOT / "docs" / "figures" / "soak.svg").exists()
