"""The figures: that they are written, and that they show what the paper says should be seen."""

import json
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch

from posrec.encodings.schemes import make_encoding
from posrec.experiments.encoding_figures import draw, encodings_figure, similarity
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.rendering import svg
from tests.helpers import command


def trained(name: str, rows: int = 30) -> TrainedEncoding:
    return TrainedEncoding(Path("runs/tonight"), name, torch.rand(rows, 8))


FIXED = [
    "encodings-length-10",
    "encodings-length-20",
    "alike-within-a-length",
    "alike-across-lengths",
]


def files_of(stems: list[str]) -> list[str]:
    return [f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")]


@pytest.mark.slow
def test_every_figure_is_written_as_svg_and_png(tmp_path: Path) -> None:
    runs = [trained("lpe"), trained("ldpe", rows=15)]
    written = draw(tmp_path / "new" / "folder", 8, runs)
    stems = [*FIXED, "alike-lpe-run-1", "alike-ldpe-run-2"]
    assert [path.name for path in written] == files_of(stems)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[1::2])
    assert "positions past them share the last" in words(written[-2])
    assert "positions past them share the last" not in words(written[-4])
    assert "SPE has one diagonal band" in words(written[6])


@pytest.mark.slow
def test_the_command_draws_and_keeps_stdout_for_the_table(tmp_path: Path) -> None:
    sizes = ("--max-length", 5, "--dimensions", 4)
    done = command("encodings", "--json", "--plot", tmp_path, *sizes)
    assert done.code == 0, done.err
    assert json.loads(done.out)["spe"]["d"] == 4
    written = [line for line in done.err.splitlines() if line.startswith("wrote")]
    assert written == [f"wrote {tmp_path / name}" for name in files_of(FIXED)]
    assert "left out: LPE and LDPE" in done.err


def words(svg: Path) -> str:
    tree = xml.etree.ElementTree.parse(svg)
    elements = tree.iter("{http://www.w3.org/2000/svg}text")
    return " ".join(" ".join(element.itertext()) for element in elements)


def test_the_same_input_gives_the_same_svg() -> None:
    schemes = {name: make_encoding(name, 8, 20) for name in ("spe", "dpe")}
    assert svg(encodings_figure(schemes, 10)) == svg(encodings_figure(schemes, 10))


@pytest.mark.parametrize(
    ("name", "bands", "corner"), [("spe", [0], 0.128), ("dpe", [0, 10], 1.0)]
)
def test_spe_has_one_band_across_lengths_and_dpe_two(
    name: str, bands: list[int], corner: float
) -> None:
    """A band is a diagonal whose every cell is near the largest value. The reverse positions differ
    by 10."""
    values = similarity(make_encoding(name, 100, 20), 10, 20)
    smallest = [float(values.diagonal(offset).min()) for offset in range(11)]
    assert [offset for offset in range(11) if smallest[offset] > 0.99] == bands
    assert float(values[9, 19]) == pytest.approx(corner, abs=1e-3)


def test_heatmaps_are_scaled_to_0_and_1_and_survive_an_encoding_of_one_value() -> None:
    values = similarity(make_encoding("spe", 8, 20), 10, 20)
    assert (float(values.min()), float(values.max())) == (0, 1)
    assert not similarity(make_encoding("none", 8, 20), 10, 20).any()
