"""What the benchmarks use of the package is there."""

import pytest

from tests.helpers import ROOT, own_process

IMPORTING = """
import importlib, pathlib, sys
sys.path[:1] = ["benchmarks"]
for path in sorted(pathlib.Path("benchmarks").glob("*.py")):
    try:
        importlib.import_module(path.stem)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in ("attacks", "harness", "posrec", "tests"):
            raise  # other packages need not be installed
"""


@pytest.mark.process  # their names, such as peers, are also those of modules that other tests import
def test_every_benchmark_can_be_imported() -> None:
    done = own_process(code=IMPORTING, cwd=ROOT)
    assert done.returncode == 0, done.stderr
