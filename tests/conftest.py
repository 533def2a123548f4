"""Shared by every test: one hypothesis profile, and where the real datasets are."""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from posrec.device import usable_cores

pytest_plugins = ["tests.fixtures"]

# One thread for each worker of pytest and what it starts: more would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadlines: a noisy machine must not fail a test. In CI the same examples every time.
settings.register_profile(
    "posrec",
    deadline=None,
    max_examples=20,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("posrec")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: more than the cores, since many tests wait for a server, browser or disk."""
    return usable_cores() + 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A machine for training alone has no polars: there, tests that read a log are skipped."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, ModuleNotFoundError) and error.name in ("polars", "backports"):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"{error.name} is not installed")
    return report


# Folders whose tests may all start processes; in gpu, Triton starts a compiler.
PROCESS_FOLDERS = ("server", "browser", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in PROCESS_FOLDERS:
            item.add_marker(pytest.mark.process)


@pytest.fixture(autouse=True)
def no_unmarked_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make unit` leaves out tests marked `process`, so a test without the mark must start none."""
    if request.node.get_closest_marker("process") is None:

        def refuse(*_: object, **__: object) -> None:
            pytest.fail("this test starts a process: mark it with @pytest.mark.process")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The real datasets: POSREC_DATA, or ../shared/data beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("POSREC_DATA", default))
    if not folder.is_dir():
        pytest.skip("the real datasets are not here; POSREC_DATA names their folder")
    return folder
