"""The benchmarks import only what the package has."""

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


# In a process, since other tests import modules of the same names, such as peers.
@pytest.mark.process
def test_every_benchmark_can_be_imported() -> None:
    done = own_process(code=IMPORTING, cwd=ROOT)
    assert done.returncode == 0, done.stderr
