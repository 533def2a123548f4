"""The report of the paper's experiments, opened from its file in a browser."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import LAPTOP, PHONE
from tests.helpers import command


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    done = command("reproduce", "plug-in", "--quick", "--quick-sessions", 500, "--device", "cpu", "--out", folder)
    assert done.code == 0, done.err
    return folder / "report.html"


@pytest.mark.parametrize("size", [LAPTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_the_screen_and_loads_nothing_else(chromium: Any, report: Path, size: Any, scheme: str) -> None:
    context = chromium.new_context(viewport=size, color_scheme=scheme)
    page, requests, errors = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(report.as_uri())
    for part in page.query_selector_all("details"):
        part.evaluate("part => part.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 29)"}[scheme]
    assert page.locator("text=LDPE improves STAMP").count() >= 2  # in the list of claims and beside its figures
    table, figure = (page.locator(f".side {name}").first.bounding_box() for name in ("table", "figure"))
    beside = figure["x"] >= table["x"] + table["width"]
    assert beside == (size == LAPTOP)
    assert requests == [report.as_uri()]
    assert errors == []
    context.close()
