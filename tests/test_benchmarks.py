"""The benchmarks import only what the package has."""

import pytest

from tests.helpers import ROOT, own_process

IMPORTING = """
import importlib, pkgutil
import benchmarks
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    if module.name.endswith("_peer"):
        continue  # a script, which needs a job
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in ("benchmarks", "posrec", "tests"):
            raise  # other packages need not be installed
"""


# In a process, since a benchmark may change what it imports.
@pytest.mark.process
def test_every_benchmark_can_be_imported() -> None:
    done = own_process(code=IMPORTING, cwd=ROOT)
    assert done.returncode == 0, done.stderr
