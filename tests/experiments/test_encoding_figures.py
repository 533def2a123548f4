"""The figures: that they are written, and that they show what the paper says should be seen."""

import json
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch
from tests.helpers import command

from posrec.encodings.schemes import make_encoding
from posrec.experiments.encoding_figures import draw, encodings_figure, similarity
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.rendering import svg


def trained(name: str, rows: int = 30) -> TrainedEncoding:
    return TrainedEncoding(Path("runs/tonight"), name, torch.rand(rows, 8))


FIXED = [
    "encodings-length-10",
    "encodings-length-20",
    "alike-within-a-length",
    "alike-across-lengths",
]


@pytest.mark.slow
def test_every_figure_is_written_as_svg_and_png(tmp_path: Path) -> None:
    written = draw(
        tmp_path / "new" / "folder", 8, [trained("lpe"), trained("ldpe", rows=15)]
    )
    stems = [*FIXED, "alike-lpe-run-1", "alike-ldpe-run-2"]
    assert [path.name for path in written] == [
        f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")
    ]
    assert all(
        path.read_bytes().startswith(b"\x89PNG")
        for path in written
        if path.suffix == ".png"
    )
    assert "positions past them share the last" in words(written[-2])
    assert "positions past them share the last" not in words(written[-4])
    assert "SPE has one diagonal band" in words(written[6])


@pytest.mark.slow
def test_the_command_draws_and_keeps_stdout_for_the_table(tmp_path: Path) -> None:
    done = command(
        "encodings", "--json", "--plot", tmp_path, "--max-length", 5, "--dimensions", 4
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["spe"]["d"] == 4
    assert [line for line in done.err.splitlines() if line.startswith("wrote")] == [
        f"wrote {tmp_path / stem}.{kind}" for stem in FIXED for kind in ("svg", "png")
    ]
    assert "left out: LPE and LDPE" in done.err


def words(svg: Path) -> str:
    tree = xml.etree.ElementTree.parse(svg)
    return " ".join(
        " ".join(element.itertext())
        for element in tree.iter("{http://www.w3.org/2000/svg}text")
    )


def test_the_same_input_gives_the_same_svg() -> None:
    schemes = {name: make_encoding(name, 8, 20) for name in ("spe", "dpe")}
    assert svg(encodings_figure(schemes, 10)) == svg(encodings_figure(schemes, 10))


def diagonal(values: torch.Tensor, offset: int) -> float:
    return float(values.diagonal(offset).min())


def test_spe_has_one_band_across_lengths_and_dpe_two() -> None:
    """A band is a diagonal whose every cell is near the largest value. The reverse positions differ
    by 10."""
    spe, dpe = (
        similarity(make_encoding(name, 100, 20), 10, 20) for name in ("spe", "dpe")
    )
    bands = {
        name: [offset for offset in range(11) if diagonal(values, offset) > 0.99]
        for name, values in (("spe", spe), ("dpe", dpe))
    }
    assert bands == {"spe": [0], "dpe": [0, 10]}
    assert float(spe[9, 19]) == pytest.approx(0.128, abs=1e-3)
    assert float(dpe[9, 19]) == pytest.approx(1.0, abs=1e-5)


def test_heatmaps_are_scaled_to_0_and_1_and_survive_an_encoding_of_one_value() -> None:
    values = similarity(make_encoding("spe", 8, 20), 10, 20)
    assert (float(values.min()), float(values.max())) == (0, 1)
    assert not similarity(make_encoding("none", 8, 20), 10, 20).any()
